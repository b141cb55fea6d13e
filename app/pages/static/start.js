// Without this the form is sent all the same; with it a file can be read before it is sent.
"use strict";
{
  const text = document.getElementById("text");
  const file = document.getElementById("file");
  const counted = document.getElementById("counted");
  const figure = new Intl.NumberFormat("en");

  function count() {
    let characters = 0;
    for (const _ of text.value) characters += 1;
    counted.textContent = `${figure.format(characters)} characters.`;
    counted.hidden = characters === 0;
  }

  async function read(chosen) {
    if (!chosen) return;
    try {
      const raw = await chosen.arrayBuffer();
      text.value = new TextDecoder("utf-8", { fatal: true }).decode(raw);
      file.value = "";
      count();
    } catch {
      // Left in its field: the server says what is wrong with it.
    }
  }

  file.addEventListener("change", () => read(file.files[0]));
  text.addEventListener("input", count);
  text.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  text.addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    read(event.dataTransfer.files[0]);
  });
  for (const element of document.querySelectorAll(".with-script")) element.hidden = false;
  count();
}
