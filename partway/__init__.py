"""Send a document and a deadline; get back what is done by then; pay for exactly that."""
