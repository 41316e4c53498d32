// Evaluated in an open console: what functions without effects of the pages return.
async () => {
  const load = (folder, names) => Promise.all(names.map((name) => import(`/console/${folder}/${name}.js`)));
  const [text, view, question, beats] = await load("pages/fleet", ["export", "view", "completion", "beats"]);
  const [follow, router, cluster, format] = await load("core", ["follow", "router", "cluster", "format"]);
  const [{ Feed }, store] = await load("core", ["feed", "store"]);
  const [[table], [diff]] = [await load("components", ["vtable"]), await load("parts", ["differences"])];
  const versions = Object.entries({ a: "v1.9.0", b: "v1.10.0", c: "" });
  const fleet = new Map(versions.map(([name, version]) => [name, { name, version, labels: {} }]));
  const types = Object.entries({ version: "version", set: "text", labels: "map of text" });
  const fields = types.map(([name, type]) => ({ name, type, about: "" }));
  const values = (_, key) => (key === "*" ? ["env"] : ["edge"]);
  const first = (asked) => question.complete(asked, asked.length, fields, values)[0]?.text;
  const state = (status, reason) => ({ conditions: [{ type: "ManagedClusterConditionAvailable", status, reason }] });
  const stateOf = (each) => cluster.stateOf({ spec: { hubAcceptsClient: true }, status: state(...each) }).state;
  const feed = new Feed();
  const [live] = feed.tables;
  const listed = (...names) => live.listed(names.map((name) => ({ metadata: { name, resourceVersion: "1" }, spec: {}, status: {} })));
  listed("a", "b");
  live.phase("stale", "the list broke off"); // b is deleted before the next attempt
  listed("a");
  live.complete();
  const drawn = () => new Promise(requestAnimationFrame);
  store.receive({ type: "changes", kind: "requests", changes: [["old", { name: "old" }]] });
  await drawn();
  feed.add((message) => message.kind === "requests" && store.receive(message));
  await drawn();
  return {
    rows: [[...live.rows.keys()], [...store.requests.keys()]],
    csv: text.csvOf([["=1+1", "-x", -3, "@x", 'a,"b']]),
    command: text.hubctlCommand({ where: "a || name == 'x'", tile: "revoked", sort: "-memory,since" }),
    order: ["version", "-version"].map((sort) => view.arrange(fleet, new Map(), { sort, matches: null }).join("")),
    moves: [["bcda", "abcd"], ["ab", "bc"], ["ab", "ab"]].map(([before, after]) => view.countMoves([...before], [...after])),
    offers: ["v", "version ", "set == ", 'set == "ed', "labels.", "!(s", "version < 1.30 "].map(first),
    joined: [question.toggled("a || b", "c"), question.toggled("a && b", "a")],
    portions: [60, 40, 0].map((count) => beats.conditionsFor(Array(count).fill("x".repeat(63))).length),
    retries: [follow.backoff(0, 1), follow.backoff(60, 1)],
    route: [router.parseRoute("#/cluster/a%2Fb?at=1h").args[0], router.href("fleet", [], { where: "a&b", sort: "" })],
    states: [["Unknown", "Revoked"], ["False", ""]].map(stateOf),
    windows: [[0, 300, 5], [3000, 300, 1000]].map((view) => table.windowOf(...view)),
    places: [284, 100].map((width) => table.placesOf([{ width: 100, grow: 1 }, { width: 50 }], width).map((place) => place.width)),
    words: [{ type: "Joined", status: "True", reason: "R", message: "m" }, [{ name: "a", value: "b" }], { a: 1 }, { a: {} }].map((each) => diff.short(each)),
    texts: [format.duration(125000), format.quantity("500m"), format.gibibytes(2 ** 36)],
  };
}
