"""Each test is a sentence about behaviour, on a real server, that fails without what it guards."""
