"use strict";
// Where more clusters than this are shown, those without anything to report have a line, not a card.
const MOST_CARDS = 24;
// Where more machines than this are shown, only those that are not ready are named.
const MOST_CHIPS = 240;
const MOST_TILES = 60;
const MOST_POOLS = 12;
const STATES = {
  Failed: "bad", Unreachable: "warn", Degraded: "warn", Deleting: "busy", Progressing: "busy",
  Parked: "pause", Paused: "pause", Available: "ok",
};
const SEVERITIES = {error: "bad", warning: "warn", waiting: "busy", note: "stale-kind"};
// What exists and does not work has the colour of the cluster's state.
const UNAVAILABLE = {Failed: "bad", Degraded: "warn", Unreachable: "stale-kind"};
const KINDS = {ok: "ok", busy: "busy", warn: "warn", bad: "bad", stale: "stale-kind"};
const MARKS = {ok: "", busy: "… ", warn: "! ", bad: "✕ ", stale: ""};
const LEGEND = {ok: "ready", busy: "pending", warn: "warning", bad: "failed", stale: "as last seen"};

let data = null, gone = "", opened;
const states = new Set();
const byId = id => document.getElementById(id);

// Everything is text: names and messages come from objects that others write.
function el(tag, classes, ...children) {
  const node = document.createElement(tag);
  if (classes) node.className = classes;
  for (const child of children) {
    if (child !== null && child !== undefined && child !== "") node.append(child);
  }
  return node;
}

function age(since) {
  const seconds = Math.max(0, (Date.now() - Date.parse(since)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]]) {
    if (seconds >= 2 * size) return Math.floor(seconds / size) + unit;
  }
  return Math.floor(seconds) + "s";
}

function remaining(moment) {
  const seconds = (Date.parse(moment) - Date.now()) / 1000;
  if (seconds <= 0) return "now";
  return seconds < 60 ? `in ${Math.ceil(seconds)} s` : `in ${Math.round(seconds / 60)} min`;
}

const short = version => version.split("+")[0];
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function versions(cluster) {
  const others = cluster.versions.filter(version => version !== cluster.version);
  return others.length ? `${short(others[0])} → ${short(cluster.version)}` : cluster.version;
}

// Clusters

function bar(parts, total, title) {
  const box = el("div", "bar");
  for (const [number, kind] of parts) {
    const fill = el("i", kind);
    fill.style.width = total ? `${100 * number / total}%` : "0";
    box.append(fill);
  }
  box.title = title;
  return box;
}

function replicas(label, value, state) {
  const broken = Math.max(0, value.current - value.available);
  const parts = [[value.available, ""], [broken, UNAVAILABLE[state] || "busy"]];
  const title = `${value.available} available, ${broken} not available, ${value.desired} wanted`;
  return [
    el("span", "dim", label),
    bar(parts, Math.max(value.desired, value.current), title),
    el("span", "mono", `${value.available}/${value.desired}`),
  ];
}

function acts(problem) {
  if (problem.replaced) return el("div", "acts", `⟳ ${problem.replaced}`);
  if (!problem.replacedAt) return null;
  const first = problem.objects.length > 1 ? "first " : "";
  return el("div", "acts", `⟳ ${first}replaced ${remaining(problem.replacedAt)} by a MachineHealthCheck`);
}

function problemBox(problem) {
  const more = problem.objects.length - 1;
  const title = el("div", "row",
    el("span", "badge " + SEVERITIES[problem.severity], problem.severity),
    el("b", "", problem.objects[0] + (more ? ` and ${more} more` : "")),
    el("span", "dim small", age(problem.since)));
  const next = problem.nextStep ? el("div", "next", "→ " + problem.nextStep) : null;
  return el("div", "problem", title, el("div", "", problem.cause), acts(problem), next);
}

function clusterCard(cluster) {
  const head = el("div", "row",
    el("span", "name", cluster.name),
    el("span", "dim small", cluster.namespace),
    el("span", "badge right " + STATES[cluster.state], cluster.state));
  const facts = el("div", "row small dim",
    el("span", "mono", versions(cluster)),
    el("span", "mono", cluster.endpoint),
    el("span", "", cluster.addons),
    el("span", "right", age(cluster.created)));
  const bars = el("div", "bars",
    ...replicas("control plane", cluster.controlPlane, cluster.state),
    ...replicas("workers", cluster.workers, cluster.state));
  return el("article", `card ${cluster.worst}`, head, facts, bars,
    ...cluster.problems.map(problem => problemBox(problem)));
}

// One line: for clusters that need no attention, and for those that share a cause.
function tile(cluster) {
  const {controlPlane, workers} = cluster;
  const node = el("div", "tile",
    el("span", "label", el("b", "", cluster.name), el("span", "dim", ` ${cluster.namespace}`)),
    el("span", "mono dim", short(versions(cluster))),
    el("span", "mono", `${controlPlane.available}/${controlPlane.desired}`),
    el("span", "mono", `${workers.available}/${workers.desired}`));
  node.title = `${cluster.namespace}/${cluster.name}: ${cluster.state}, control plane and workers`;
  return node;
}

// What clusters have in common is one card, whatever their number.
function causeCard({cause, clusters}) {
  const head = el("div", "row",
    el("span", "name", cause.subject),
    el("span", "badge right " + SEVERITIES[cause.severity], count(clusters.length, "cluster")));
  const objects = clusters.map(cluster => `Cluster/${cluster.name}`);
  return el("article", `card wide ${cause.severity}`, head, problemBox({...cause, objects}),
    el("div", "tiles", ...clusters.map(tile)));
}

function causes(clusters) {
  return data.causes
    .map(cause => ({cause, clusters: clusters.filter(({namespace, name}) =>
      cause.clusters.includes(`${namespace}/${name}`))}))
    .filter(shared => shared.clusters.length);
}

function clusterCards(clusters) {
  const shared = causes(clusters);
  const covered = new Set(shared.flatMap(each => each.clusters.filter(({problems}) => !problems.length)));
  const single = clusters.filter(cluster => !covered.has(cluster));
  const quiet = single.length > MOST_CARDS
    ? single.filter(cluster => cluster.state === "Available" && !cluster.problems.length) : [];
  const cards = single.filter(cluster => !quiet.includes(cluster));
  return [[...shared.map(causeCard), ...cards.map(clusterCard)], quiet.map(tile)];
}

function nothing() {
  if (data.clusters.length) return el("p", "dim", "No cluster matches.");
  return el("p", "dim", "No clusters on Harvester. Create one: ",
    el("code", "", "caphv generate --interactive"));
}

// Rollouts

const complete = ({desired, current, available, upToDate}) =>
  desired === current && desired === available && desired === upToDate;

// Only what the cluster's own card does not say: a rollout, and which of several groups is incomplete.
function groupsOf(cluster) {
  if (["Deleting", "Unreachable", "Parked", "Paused"].includes(cluster.state)) return [];
  const several = cluster.groups.length > 2 && cluster.state !== "Failed";
  return cluster.groups
    .filter(({replicas}) => !complete(replicas))
    .filter(({replicas}) => several || replicas.upToDate < replicas.current
      || replicas.current !== replicas.desired)
    .map(group => ({group, cluster}));
}

function rolloutCard({group, cluster}) {
  const value = group.replicas, total = Math.max(value.desired, value.current);
  const old = Math.max(0, value.current - value.upToDate);
  const broken = Math.max(0, value.current - value.available);
  return el("article", "card",
    el("div", "row", el("span", "name", group.name || cluster.name)),
    el("div", "row small dim", el("span", "", `${cluster.namespace}/${cluster.name}`),
      el("span", "mono right", group.version)),
    el("div", "bars",
      el("span", "dim", "up to date"),
      bar([[value.upToDate, ""], [old, "busy"]], total, `${old} of another version or spec`),
      el("span", "mono", `${value.upToDate}/${value.desired}`),
      ...replicas("available", value, cluster.state)));
}

// Machines

function chip({machine, cluster}) {
  const classes = `chip mono ${KINDS[machine.kind]}${machine.controlPlane ? " control-plane" : ""}`;
  const node = el("span", classes, MARKS[machine.kind] + machine.name);
  node.title = [
    `${cluster.namespace}/${cluster.name}`, machine.controlPlane ? "control plane" : "worker",
    machine.version, machine.addresses.join(", "), machine.text,
  ].filter(Boolean).join("\n");
  return node;
}

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return [...groups].sort(([a], [b]) =>
    (a === "") - (b === "") || natural(a, b));
}

function hostBox(host, items, many) {
  const named = many ? items.filter(({machine}) => machine.kind !== "ok") : items;
  const ready = items.length - named.length;
  return el("div", "host",
    el("div", "row", el("b", "small", host || "not placed"),
      el("span", "dim small right", many ? `${ready} ready of ${items.length}` : items.length)),
    named.length ? el("div", "chips", ...named.map(chip)) : null);
}

function zoneCard([zone, items], many) {
  const hosts = grouped(items, ({machine}) => machine.host);
  return el("article", "card",
    el("div", "row", el("span", "name", zone || "No zone"),
      el("span", "dim small right", count(items.length, "machine"))),
    ...hosts.map(([host, own]) => hostBox(host, own, many)));
}

function legend(items) {
  const present = new Set(items.map(({machine}) => machine.kind));
  const node = el("span", "", el("span", "chip control-plane", "control plane"));
  for (const [kind, text] of Object.entries(LEGEND)) {
    if (present.has(kind)) node.append(" ", el("span", `chip ${KINDS[kind]}`, MARKS[kind] + text));
  }
  return node;
}

// Pools and Events

const share = pool => pool.free === undefined ? -1 : pool.total ? pool.free / pool.total : 0;

function poolCard(pool) {
  const invalid = pool.free === undefined, used = invalid ? 0 : pool.total - pool.free;
  const kind = invalid || pool.free === 0 ? "bad" : share(pool) < 0.1 ? "warn" : "busy";
  const free = invalid ? "invalid" : `${pool.free} free of ${pool.total}`;
  return el("article", "card",
    el("div", "row", el("span", "name", pool.name), el("span", "right mono small", free)),
    el("div", "small dim mono", pool.harvester),
    el("div", "bars", el("span", "dim", "in use"), bar([[used, kind]], pool.total, free),
      el("span", "mono", used)));
}

function poolCards(pools) {
  const sorted = [...pools].sort((a, b) => share(a) - share(b));
  const rest = sorted.length - MOST_POOLS;
  const cards = sorted.slice(0, MOST_POOLS).map(poolCard);
  if (rest > 0) cards.push(el("p", "dim small", `${count(rest, "pool")} with more left`));
  return cards;
}

function eventRow(event) {
  const badge = el("span", "badge " + (event.type === "Warning" ? "warn" : "ok"), event.words);
  badge.title = event.reason;
  return el("tr", "",
    el("td", "nowrap dim", age(event.time)),
    el("td", "nowrap", badge),
    el("td", "object", el("span", "dim small", event.namespace + " "), el("span", "mono", event.object)),
    el("td", "message", event.message + (event.count > 1 ? ` (×${event.count})` : "")));
}

function objectsOf(cluster) {
  const names = cluster.machines.flatMap(machine => [machine.name, machine.infrastructure]);
  return [cluster.name, cluster.infrastructure, ...names].map(name => `${cluster.namespace}/${name}`);
}

// The page

const natural = new Intl.Collator(undefined, {numeric: true}).compare;
const byName = (a, b) => natural(a.namespace, b.namespace) || natural(a.name, b.name);

function stateBadge([state, number]) {
  const badge = el("button", "badge " + STATES[state], `${number} ${state.toLowerCase()}`);
  badge.type = "button";
  badge.title = "Show only these clusters";
  badge.setAttribute("aria-pressed", states.has(state));
  badge.addEventListener("click", () => { if (!states.delete(state)) states.add(state); draw(); });
  return badge;
}

function fill(id, items) {
  byId(id).replaceChildren(...items);
  const section = byId(id + "-section");
  if (section) section.hidden = !items.length && id !== "clusters";
}

// Let each card span the rows that it covers: all are measured first, which costs one layout.
function arrange() {
  const cards = [...document.querySelectorAll(".masonry > *")];
  const heights = cards.map(card => card.getBoundingClientRect().height);
  cards.forEach((card, index) => { card.style.gridRowEnd = `span ${Math.ceil((heights[index] + 14) / 2)}`; });
}

function drawProvider() {
  const provider = data.provider && data.provider.silent ? data.provider : null;
  byId("provider").hidden = !provider;
  if (!provider) return;
  byId("provider").replaceChildren(
    el("div", "row", el("span", "badge bad", "provider"), el("b", "", provider.cause),
      el("span", "dim small", age(provider.since))),
    el("div", "next", "→ " + provider.nextStep));
}

function draw() {
  if (!data) return;
  const order = Object.keys(STATES);
  const wanted = byId("filter").value.trim().toLowerCase();
  const present = new Set(data.clusters.map(cluster => cluster.state));
  const chosen = new Set([...states].filter(state => present.has(state)));
  const clusters = data.clusters
    .filter(cluster => `${cluster.namespace}/${cluster.name}`.toLowerCase().includes(wanted))
    .filter(cluster => !chosen.size || chosen.has(cluster.state))
    .sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state) || byName(a, b));

  byId("server").textContent = data.server.replace(/^https:\/\//, "");
  byId("counts").replaceChildren(...order
    .map(state => [state, data.clusters.filter(cluster => cluster.state === state).length])
    .filter(([, number]) => number).map(stateBadge));
  drawProvider();

  const [cards, tiles] = clusterCards(clusters);
  fill("clusters", clusters.length ? cards : [nothing()]);
  byId("quiet").replaceChildren(...tiles);
  byId("quiet-box").hidden = !tiles.length;
  byId("quiet-box").open = opened ?? (wanted !== "" || tiles.length <= MOST_TILES);
  byId("quiet-title").textContent = `${count(tiles.length, "cluster")} without anything to report`;
  fill("rollouts", clusters.flatMap(groupsOf).map(rolloutCard));

  const machines = clusters.flatMap(cluster => cluster.machines.map(machine => ({machine, cluster})));
  const many = machines.length > MOST_CHIPS;
  fill("hosts", grouped(machines, ({machine}) => machine.zone).map(zone => zoneCard(zone, many)));
  byId("legend").replaceChildren(legend(machines));
  fill("pools", poolCards(data.pools));

  const shown = wanted || chosen.size ? new Set(clusters.flatMap(objectsOf)) : null;
  fill("events", data.events
    .filter(event => !shown || shown.has(`${event.namespace}/${event.object.split("/")[1]}`))
    .map(eventRow));
  byId("unseen").replaceChildren(...data.unseen.map(what => el("div", "", "not seen: " + what)));
  arrange();

  const wrong = data.clusters.filter(cluster => cluster.wrong).length;
  document.title = wrong ? `(${wrong}) caphv` : "caphv";
}

function live(since) {
  gone = since;
  const fault = gone || (data && data.fault);
  byId("live").textContent = fault || "live";
  byId("live").className = "badge " + (fault ? "bad" : "ok");
  document.body.classList.toggle("stale", Boolean(fault));
}

const source = new EventSource("events");
source.onopen = () => live("");
source.onmessage = event => { data = JSON.parse(event.data); live(""); draw(); };
source.onerror = () => live(gone || `disconnected since ${new Date().toLocaleTimeString()}`);
byId("filter").addEventListener("input", draw);
byId("quiet-title").addEventListener("click", () => { opened = !byId("quiet-box").open; });
byId("theme").addEventListener("click", () => {
  const root = document.documentElement.dataset;
  const dark = root.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.theme = dark === "dark" ? "light" : "dark";
});
new ResizeObserver(arrange).observe(byId("clusters"));
setInterval(draw, 15000);
