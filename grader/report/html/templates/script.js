"use strict";
// Everything on the page can be read without this script. It adds the copy buttons, says what the
// cell of a map is that the pointer or the arrow keys are on, and shows the tiles of a program one by
// one, with the lines that ran and the place on the map.

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

// Where positions such as "3, 8-9" begin on a side of a map, and how far they reach, in pixels.
function span(positions, start, [, size, end], cell) {
  const numbers = (positions.match(/\d+/g) || [-1]).map(Number);
  const first = Math.floor(numbers[0] / size), last = Math.floor(numbers[numbers.length - 1] / size);
  const inside = first >= 0 && last * size < end;
  return inside ? [start + first * cell, (last + 1 - first) * cell] : [0, 0];
}

for (const film of document.querySelectorAll(".film")) {
  const rounds = [...film.querySelectorAll(".round")];
  if (!rounds.length) continue;
  const status = film.querySelector(".now"), svg = film.querySelector("[data-grid]");
  const grid = svg && JSON.parse(svg.dataset.grid);
  const lines = [...film.querySelectorAll("[data-line]")];
  const button = {};
  for (const each of film.querySelectorAll("[data-go]")) button[each.dataset.go] = each;
  const part = rounds.findIndex((round) => round.dataset.number === film.dataset.part);
  let at = 0, timer = 0;

  function show(number) {
    at = Math.max(0, Math.min(number, rounds.length - 1));
    rounds.forEach((round, index) => { round.hidden = index !== at; });
    const {lines: ran, keys} = rounds[at].dataset;
    const now = new Set(ran.split(" "));
    for (const line of lines) line.classList.toggle("ran-now", now.has(line.dataset.line));
    const place = "tile " + rounds[at].dataset.number + " of " + film.dataset.tiles;
    status.textContent = place + (at === part ? ", diverges here" : "");
    if (grid) {
      const [x, width] = span(keys, grid.left, grid.across, grid.cell);
      const [y, height] = span(svg.dataset.queries, grid.top, grid.down, grid.cell);
      const box = width && height ? {x, y, width, height} : {width: 0, height: 0};
      for (const name in box) svg.querySelector(".outline").setAttribute(name, box[name]);
    }
  }
  function pause() {
    clearInterval(timer);
    timer = 0;
    button.play.textContent = "play";
  }
  const go = {
    first: () => show(0),
    previous: () => show(at - 1),
    next: () => show(at + 1),
    last: () => show(rounds.length - 1),
    part: () => show(part),
    play: () => {
      if (at === rounds.length - 1) show(0);
      button.play.textContent = "pause";
      timer = setInterval(() => {
        show(at + 1);
        if (at === rounds.length - 1) pause();
      }, 1200);
    },
  };
  for (const [name, each] of Object.entries(button)) {
    each.addEventListener("click", () => {
      const was = timer;
      pause();
      if (name !== "play" || !was) go[name]();
    });
  }
  film.addEventListener("keydown", (event) => {
    const name = {
      ArrowLeft: "previous", ArrowRight: "next", Home: "first", End: "last",
    }[event.key];
    if (!name) return;
    event.preventDefault();
    pause();
    go[name]();
  });
  button.play.hidden = matchMedia("(prefers-reduced-motion: reduce)").matches;
  film.classList.add("on");
  film.querySelector(".player").hidden = false;
  show(Math.max(part, 0));
}
