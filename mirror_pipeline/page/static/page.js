// The page works without this file; it keeps the figures fresh and draws the plot.
"use strict";
// What somebody is about to press or to read with a screen reader is not replaced under their hands.
document.addEventListener("htmx:beforeSwap", (event) => {
  const active = document.activeElement;
  if (active && active !== document.body && event.detail.target.contains(active)) event.detail.shouldSwap = false;
});
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("plot");
  if (!place || typeof uPlot === "undefined") return;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = (more) => ({ stroke: colour("--dim"), grid: { stroke: colour("--edge") }, ticks: { stroke: colour("--edge") }, ...more });
  const time = (at, seconds) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined });
  const times = (_, all) => all.map((at) => time(at, all.length > 1 && all[1] - all[0] < 60));
  const width = () => Math.max(280, place.clientWidth);
  let plot;
  async function draw() {
    const answer = await fetch(place.dataset.points, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const points = await answer.json();
    if (points[0].length < 2) return;
    if (plot) return plot.setData(points);
    plot = new uPlot({
      width: width(), height: 180, scales: { y: { range: (_, low, high) => [0, high || 1] }, rate: { range: (_, low, high) => [0, high || 1] } },
      series: [{ value: (_, at) => (at == null ? "--" : time(at, true)) }, { label: "records behind", stroke: colour("--working"), width: 1.5, fill: colour("--working") + "22" },
               { label: "MB/s", stroke: colour("--ok"), width: 1.2, scale: "rate" }],
      axes: [axis({ values: times, space: 80 }), axis({ size: 70 }), axis({ side: 1, scale: "rate", grid: { show: false } })],
    }, points, place);
  }
  draw();
  setInterval(draw, 5000);
  addEventListener("resize", () => plot && plot.setSize({ width: width(), height: 180 }));
});
