// Without this the page loads again every two seconds; with it each change is put in its place.
"use strict";
{
  const QUARTERS = 4;
  const TICK_MS = 250;
  const RETRY_MS = 3000;
  const GROWTH_MS = 2000;
  const FINAL = new Set(["done", "failed"]);

  const seen = document.getElementById("segments");
  const said = document.getElementById("said");
  const lost = document.getElementById("lost");
  const gone = document.getElementById("gone");
  const total = seen.children.length;
  const figure = new Intl.NumberFormat("en");
  const byId = (id) => document.getElementById(id);

  // The server said how much time had passed when it answered; its clock, our stopwatch.
  let answered = performance.getEntriesByType("navigation")[0]?.responseStart ?? 0;

  const written = (element) => Number(element.textContent.replaceAll(",", ""));
  const write = (element, number) => {
    element.textContent = figure.format(number);
  };
  const characters = (text) => [...text].length;

  // Only the counts of a running request change here, and its legend has them all.
  let legend = {};
  let cells = [];
  let spoken = 0;

  const quarter = () =>
    Math.floor((QUARTERS * (written(legend.done.count) + written(legend.failed.count))) / total);
  function show(segment, state) {
    if (segment.dataset.state === state || FINAL.has(segment.dataset.state)) return false;
    const before = legend[segment.dataset.state];
    const after = legend[state];
    write(before.count, written(before.count) - 1);
    write(after.count, written(after.count) + 1);
    segment.dataset.state = state;
    segment.querySelector(".word").textContent = after.word;
    cells[Number(segment.id.slice(1))].dataset.state = state;
    return true;
  }

  function finish({ index, status, result, error }) {
    const segment = byId(`s${index}`);
    if (!show(segment, status)) return;
    segment.querySelector(".result").textContent = result ?? error ?? "";
    if (status !== "done") return;
    const done = written(legend.done.count);
    write(byId("done"), done);
    document.title = document.title.replace(/^[\d,]+/, figure.format(done));
    const [taken, given] = [byId("characters-in"), byId("characters-out")];
    write(taken, written(taken) + Number(segment.dataset.characters));
    write(given, written(given) + characters(result));
    if (quarter() > spoken && quarter() < QUARTERS) {
      spoken = quarter();
      said.textContent = `${figure.format(done)} of ${figure.format(total)} done`;
    }
  }

  function work(indexes) {
    const now = new Set(indexes);
    for (const segment of seen.querySelectorAll("[data-state=processing]")) {
      if (!now.has(Number(segment.id.slice(1)))) show(segment, "pending");
    }
    for (const index of now) show(byId(`s${index}`), "processing");
  }

  function tick() {
    const summary = byId("summary");
    if (summary.dataset.status !== "running") return;
    const { elapsedMs, deadlineMs } = summary.dataset;
    const elapsed = Math.min(Number(elapsedMs) + performance.now() - answered, Number(deadlineMs));
    byId("time").value = elapsed;
    byId("seconds").textContent = Math.ceil((deadlineMs - elapsed) / 1000);
  }
  const ticking = setInterval(tick, TICK_MS);

  // What follows the end has many words, and they stand in the templates: the server says them.
  async function renew() {
    const asked = performance.now();
    let page;
    try {
      const response = await fetch(location.href);
      if (response.status < 500) page = await response.text();
    } catch {
      // Away like an answer of 5xx: asked again below.
    }
    if (page === undefined) {
      lost.hidden = false;
      setTimeout(renew, RETRY_MS);
      return;
    }
    const fresh = new DOMParser().parseFromString(page, "text/html");
    const summary = fresh.getElementById("summary");
    lost.hidden = true;
    if (summary === null) {
      gone.hidden = false;
      clearInterval(ticking);
      return;
    }
    for (const segment of fresh.querySelectorAll("#segments > li")) {
      const old = byId(segment.id);
      if (old.dataset.state !== segment.dataset.state) old.replaceWith(segment);
    }
    const focused = byId("summary").contains(document.activeElement);
    byId("summary").replaceWith(summary);
    document.title = fresh.title;
    if (focused) byId("sentence")?.focus();
    const sentence = `${byId("outcome").textContent}. ${byId("sentence")?.textContent ?? ""}`;
    if (said.textContent !== sentence) said.textContent = sentence;
    answered = asked;
    follow();
  }

  function listen() {
    const id = location.pathname.split("/")[2];
    const events = new EventSource(`/v1/requests/${id}/events`);
    const on = (name, act) => events.addEventListener(name, (event) => act(JSON.parse(event.data)));
    on("segment", finish);
    on("working", ({ indexes }) => work(indexes));
    on("end", () => {
      events.close();
      renew();
    });
    events.addEventListener("open", () => {
      lost.hidden = true;
    });
    events.addEventListener("error", () => {
      lost.hidden = false;
      // Else the browser tries again by itself, from where it was.
      if (events.readyState === EventSource.CLOSED) setTimeout(renew, RETRY_MS);
    });
  }

  function follow() {
    const { status, grows } = byId("summary").dataset;
    if (status === "running") {
      legend = {};
      for (const item of document.querySelectorAll("#summary .legend li")) {
        const word = item.querySelector(".word").textContent;
        legend[item.dataset.state] = { count: item.querySelector("b"), word };
      }
      cells = document.querySelectorAll("#summary .map .mark");
      spoken = quarter();
      listen();
    } else if (grows === "yes") {
      setTimeout(renew, GROWTH_MS);
    }
    const copy = byId("copy");
    if (copy === null || !navigator.clipboard) return;
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(byId("whole").value);
      copy.textContent = "Copied";
    });
  }

  // A page that comes back as it was left would show what is no longer so.
  addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });

  follow();
}
