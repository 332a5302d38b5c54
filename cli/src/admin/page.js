// The status page: asks this process for /status.json and /metrics every second and shows what changed. Everything is
// written as text, never as HTML: names of streams and messages of errors come from others.
"use strict";

const EVERY_MS = 1000, RATE_OVER_MS = 10_000, CHART_POINTS = 120, MONTH_SECONDS = 730 * 3600;
const byId = (id) => document.getElementById(id);

// OpenMetrics' text as a map from a metric's name to its samples: [{labels, value}].
function parse(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)/i.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/gi)) labels[key] = value;
    if (!metrics.has(match[1])) metrics.set(match[1], []);
    metrics.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return metrics;
}

const fits = (labels, wanted) => Object.entries(wanted).every(([key, value]) => labels[key] === value);
const has = (look, name) => look.metrics.has(name);
function sum(look, name, wanted = {}) {
  return (look.metrics.get(name) ?? []).reduce((all, s) => (fits(s.labels, wanted) ? all + s.value : all), 0);
}

// Looks of the last seconds: the newest, and the one that rates are counted from.
const looks = [];
const newest = () => looks[looks.length - 1];
const oldest = () => looks[0];
const seconds = () => (newest().at - oldest().at) / 1000;
// A counter that fell belongs to a process that began anew.
const increase = (name, wanted) => Math.max(0, sum(newest(), name, wanted) - sum(oldest(), name, wanted));
const rate = (name, wanted) => (seconds() > 0 ? increase(name, wanted) / seconds() : 0);

// A quantile of what a histogram counted in the meantime; none when that is nothing.
function quantile(name, q, wanted = {}) {
  const bounds = new Map();
  for (const [look, sign] of [[newest(), 1], [oldest(), -1]]) {
    for (const { labels, value } of look.metrics.get(`${name}_bucket`) ?? []) {
      if (!fits(labels, wanted)) continue;
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      bounds.set(bound, (bounds.get(bound) ?? 0) + sign * value);
    }
  }
  const counts = [...bounds].sort(([a], [b]) => a - b);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let [lower, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= q * total) {
      if (bound === Infinity) return lower;
      return lower + (bound - lower) * ((q * total - below) / Math.max(1, count - below));
    }
    [lower, below] = [bound, count];
  }
  return lower;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
function bytes(number) {
  let unit = 0;
  for (; number >= 1024 && unit < UNITS.length - 1; unit++) number /= 1024;
  return `${number.toFixed(unit && number < 100 ? 1 : 0)} ${UNITS[unit]}`;
}
const count = (number) => Math.round(number).toLocaleString("en-US");
const time = (s) => (s === null ? "–" : s < 1 ? `${Math.round(s * 1000)} ms` : s < 120 ? `${s.toFixed(1)} s` : `${Math.round(s / 60)} min`);
const both = (name, wanted) => `p50 ${time(quantile(name, 0.5, wanted))}, p99 ${time(quantile(name, 0.99, wanted))}`;

function element(tag, content, className = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  for (const part of [content].flat()) made.append(part);
  return made;
}

function stage(name, big, lines, className = "") {
  const parts = [element("b", name), element("span", big, "rate"), ...lines.map((line) => element("div", line))];
  return element("div", parts, `stage ${className}`);
}

function producerStages(look) {
  const p = "millpond_producer";
  const failed = sum(look, "millpond_gateway_requests_total") - sum(look, "millpond_gateway_requests_total", { code: "OK" });
  return [
    stage("gateway", `${count(rate("millpond_gateway_records_total"))}/s`, [
      `${count(sum(look, "millpond_gateway_requests_in_flight"))} requests in flight`,
      both("millpond_gateway_request_duration_seconds"),
      `${count(failed)} not OK so far`,
      ...soFar(look, [["millpond_gateway_rejected_rows_total", "rows refused"]]),
    ]),
    stage("encode", `${bytes(rate(`${p}_raw_bytes_total`))}/s`, [
      `${count(sum(look, `${p}_blocks_encoding`))} blocks under way`,
      `holds ${bytes(sum(look, `${p}_memory_held_bytes`))} of ${bytes(sum(look, `${p}_memory_limit_bytes`))}`,
    ]),
    stage("upload", `${bytes(rate(`${p}_stored_bytes_total`))}/s`, [
      `${count(sum(look, `${p}_segments_uploading`))} segments under way`,
      both(`${p}_upload_seconds`),
    ]),
    stage("commit", `${rate(`${p}_segments_total`).toFixed(1)} segments/s`, [
      `${count(sum(look, `${p}_segments_uncommitted`))} waiting`,
      both(`${p}_commit_seconds`),
      ...lead(look),
      ...soFar(look, [[`${p}_client_requests_settled_total`, "numbered requests repeated", { outcome: "repeated" }]]),
    ]),
  ];
}

// The counts that are not zero.
function soFar(look, of) {
  const counts = of.map(([name, what, wanted]) => [sum(look, name, wanted), what]).filter(([number]) => number > 0);
  return counts.map(([number, what]) => `${count(number)} ${what} so far`);
}

// Whether this gateway commits for others, or another one for it.
function lead(look) {
  const p = "millpond_producer";
  if (sum(look, `${p}_leads`) > 0) return [`leads: ${count(sum(look, `${p}_commits_for_others_total`))} commits for others so far`];
  const sent = ["appended", "delegated"].map((how) => `${p}_${how}_bytes_total`);
  if (sent.every((name) => sum(look, name) === 0)) return [];
  return [`follows: ${bytes(rate(sent[0]) + rate(sent[1]))}/s through the leader`];
}

function consumerStages(look) {
  const c = "millpond_consumer", queued = (of) => count(sum(look, `${c}_queue`, { stage: of }));
  return [
    stage("fetch", `${bytes(rate(`${c}_fetched_bytes_total`))}/s`, [`${queued("fetch")} parts`, both(`${c}_fetch_seconds`)]),
    stage("decode", `${rate(`${c}_chunks_total`).toFixed(1)} chunks/s`, [
      `${queued("decode")} batches, ${queued("memory")} wait for memory`,
      both(`${c}_decode_seconds`),
    ]),
    stage("write", `${bytes(rate(`${c}_inserted_bytes_total`))}/s`, [
      `${queued("write")} chunks, ${count(sum(look, `${c}_write_retries_total`))} retries so far`,
      both(`${c}_write_seconds`),
    ]),
    stage("ClickHouse", `${count(rate(`${c}_records_total`))}/s`, [both(`${c}_latency_seconds`)], "store"),
  ];
}

// The process's own record of the last ten minutes: {every_seconds, charts: [{title, unit, metric, values}]}.
let history = { every_seconds: 5, charts: [] };
const SHOW = {
  "records/s": (value) => `${count(value)}/s`,
  "bytes/s": (value) => `${bytes(value)}/s`,
  seconds: time,
  bytes,
  records: count,
};
// Figures that this page knows more recently than the last sample.
const LIVE = {
  millpond_gateway_records_total: rate,
  millpond_producer_stored_bytes_total: rate,
  millpond_consumer_records_total: rate,
};

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Ten minutes up to now, from zero to the largest value. Samples without a value leave a gap.
function chart({ title, unit, values }) {
  const top = Math.max(...values.map((value) => value ?? 0));
  const svg = shape("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": `${title}, last ten minutes` });
  const x = (place) => 100 - ((values.length - 1 - place) / (CHART_POINTS - 1)) * 100;
  const runs = [[]];
  values.forEach((value, place) => {
    if (value === null) runs.push([]);
    else runs.at(-1).push(`${x(place)},${39 - (value / (top || 1)) * 37}`);
  });
  for (const run of runs) {
    // A point without neighbours would be invisible.
    if (run.length === 1) run.push(run[0].replace(/^[^,]+/, (at) => Number(at) + 0.5));
    if (run.length) svg.append(shape("polyline", { points: run.join(" ") }));
  }
  const known = values.some((value) => value !== null);
  const range = element("div", [element("span", `${Math.round((CHART_POINTS * history.every_seconds) / 60)} min ago`), element("span", known ? `max ${SHOW[unit](top)}` : "")], "range dim");
  return [svg, range];
}

const tile = (name, big, more = []) => element("div", [element("b", name, "dim"), element("div", big, "rate"), ...more], "tile");

function tiles(look) {
  const made = history.charts.map((shown) => {
    const live = LIVE[shown.metric];
    const last = live && seconds() > 0 ? live(shown.metric) : shown.values.findLast((value) => value !== null);
    return tile(shown.title, SHOW[shown.unit](last), chart(shown));
  });
  const prices = look.metrics.get("millpond_store_price_dollars") ?? [];
  if (prices.length) {
    const perSecond = prices.reduce((all, { labels, value }) => all + value * rate("millpond_store_requests_total", { kind: labels.kind }), 0);
    const requests = ["put", "get", "list"].map((kind) => `${rate("millpond_store_requests_total", { kind }).toFixed(1)} ${kind.toUpperCase()}`);
    made.push(tile("requests of this process", `$${(perSecond * MONTH_SECONDS).toFixed(2)} a month`, [element("div", `${requests.join(", ")} a second`, "dim")]));
  }
  return made;
}

// Rows that reach no table because --unique or --transform drops them.
function dropped(stream) {
  const of = [["millpond_consumer_duplicates_total", "duplicates"], ["millpond_consumer_filtered_total", "by the program"]];
  const counts = of.map(([name, what]) => [sum(newest(), name, { stream }), what]).filter(([number]) => number > 0);
  return counts.map(([number, what]) => `${count(number)} ${what}`).join(", ") || "–";
}

function streams(look) {
  const columns = [["records", count], ["bytes", bytes], ["seconds", time]];
  const rows = new Map();
  for (const [of] of columns) {
    for (const { labels, value } of look.metrics.get(`millpond_consumer_backlog_${of}`) ?? []) {
      const key = JSON.stringify([labels.stream, labels.shard]);
      rows.set(key, { ...rows.get(key), [of]: value });
    }
  }
  byId("streams").hidden = rows.size === 0;
  const head = ["stream", "shard", "records behind", "bytes", "for", "records/s", "latency", "dropped so far"].map((name) => element("th", name));
  byId("streams").querySelector("thead").replaceChildren(element("tr", head));
  const body = [...rows].sort().map(([key, row]) => {
    const [stream, shard] = JSON.parse(key);
    const cells = [stream, shard, ...columns.map(([of, show]) => show(row[of] ?? 0))];
    cells.push(count(rate("millpond_consumer_records_total", { stream })), both("millpond_consumer_latency_seconds", { stream }), dropped(stream));
    return element("tr", cells.map((cell) => element("td", cell)));
  });
  byId("streams").querySelector("tbody").replaceChildren(...body);
}

function show(status) {
  const look = newest();
  document.title = `Millpond ${status.role}`;
  byId("title").textContent = document.title;
  byId("about").textContent = `${status.buffer ?? ""}  ·  version ${status.version}  ·  since ${new Date(status.started_at_ms).toLocaleString()}`;
  const waiting = status.waiting_for.length > 0;
  byId("ready").textContent = waiting ? "waiting" : "ready";
  byId("ready").classList.toggle("waiting", waiting);
  byId("reasons").hidden = !waiting;
  byId("reasons").textContent = status.waiting_for.join("\n");

  const flow = [];
  if (has(look, "millpond_producer_segments_total")) flow.push(stage("clients", "OTLP", []), ...producerStages(look));
  const store = `${bytes(rate("millpond_store_bytes_total", { direction: "written" }))}/s in`;
  flow.push(stage("bucket", store, [`${bytes(rate("millpond_store_bytes_total", { direction: "read" }))}/s out`], "store"));
  if (has(look, "millpond_consumer_records_total") || status.role === "consumer") flow.push(...consumerStages(look));
  byId("flow").replaceChildren(...flow);
  byId("tiles").replaceChildren(...tiles(look));
  streams(look);
  const events = status.events.map((event) =>
    element("tr", [element("td", new Date(event.at_ms).toLocaleTimeString(), "dim"), element("td", event.level, event.level), element("td", event.message)]));
  byId("events").replaceChildren(...(events.length ? events : [element("tr", element("td", "none", "dim"))]));
}

async function update() {
  try {
    const [status, metrics, charts] = await Promise.all([fetch("status.json"), fetch("metrics"), fetch("history.json")]);
    history = await charts.json();
    looks.push({ at: performance.now(), metrics: parse(await metrics.text()) });
    while (looks.length > 2 && newest().at - looks[1].at > RATE_OVER_MS) looks.shift();
    show(await status.json());
  } catch (error) {
    byId("ready").textContent = "no answer";
    byId("ready").classList.add("waiting");
  }
  setTimeout(update, EVERY_MS);
}
update();
