"use strict";
// Everything on the page can be read without this script. It adds the copy buttons, and says what
// the cell of a map is that the pointer or the arrow keys are on.

for (const button of document.querySelectorAll("button[data-copy]")) {
  const code = document.getElementById(button.dataset.copy);
  button.hidden = false;
  button.setAttribute("aria-label", "copy the command " + code.textContent);
  button.addEventListener("click", async () => {
    let copied = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      copied = document.execCommand("copy");
    }
    button.textContent = copied ? "copied" : "press Ctrl-C";
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
}

function interval([name, length, end], index) {
  if (!name) return "";
  const first = index * length, last = Math.min(first + length, end) - 1;
  return name + " " + (first === last ? first : first + "-" + last);
}

for (const svg of document.querySelectorAll("svg[data-map]")) {
  const map = JSON.parse(svg.dataset.map);
  const told = document.getElementById(svg.getAttribute("aria-describedby"));
  const cursor = svg.querySelector(".cursor");
  let at = [0, 0];

  function tell(row, column) {
    row = Math.max(0, Math.min(row, map.rows.length - 1));
    column = Math.max(0, Math.min(column, map.rows[row].length - 1));
    at = [row, column];
    const places = [interval(map.down, row), interval(map.across, column)];
    const where = places.filter(Boolean).join(", ");
    const note = map.note ? " (" + map.note + ")" : "";
    told.textContent = where + ": " + map.words[map.rows[row][column]] + note;
    cursor.setAttribute("x", map.left + column * map.cell);
    cursor.setAttribute("y", map.top + row * map.cell);
    cursor.setAttribute("width", map.cell);
    cursor.setAttribute("height", map.cell);
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const column = Math.floor(((event.clientX - box.left) * scale - map.left) / map.cell);
    const row = Math.floor(((event.clientY - box.top) * scale - map.top) / map.cell);
    if (row >= 0 && column >= 0 && row < map.rows.length && column < map.rows[row].length) {
      tell(row, column);
    }
  });
  svg.addEventListener("keydown", (event) => {
    const step = {
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
    }[event.key];
    if (!step) return;
    event.preventDefault();
    tell(at[0] + step[0], at[1] + step[1]);
  });
}
