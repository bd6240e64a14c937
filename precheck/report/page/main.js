// Starts the page: theme, keys, paper, and the check that the address names or that is worst.

const KEPT = "precheck-theme";

/** Some browsers refuse storage to pages opened from disk; the choice then lasts as long as the page. */
function kept(value) {
  try {
    if (value !== undefined) localStorage.setItem(KEPT, value);
    return localStorage.getItem(KEPT) ?? "auto";
  } catch (refused) {
    return value ?? "auto";
  }
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  changed("theme");
}

function startTheme() {
  const theme = kept();
  const act = (chosen) => {
    kept(chosen);
    setTheme(chosen);
  };
  choice(
    byId("theme"),
    "theme",
    [
      ["auto", "auto"],
      ["light", "light"],
      ["dark", "dark"],
    ],
    theme,
    act,
  );
  if (theme !== "auto") document.documentElement.dataset.theme = theme;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed("theme"));
}

/** Paper is white and narrow, and has no scroll bars. */
function startPrint() {
  const set = (printing) => {
    document.documentElement.classList.toggle("paper", printing);
    setTheme(printing ? "light" : kept());
    if (!grids.grid) return;
    grids.grid.printing = printing;
    grids.grid.draw();
  };
  window.addEventListener("beforeprint", () => set(true));
  window.addEventListener("afterprint", () => set(false));
}

function startKeys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=radio]), select, textarea");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    byId("filter").focus();
    byId("filter").select();
  });
}

function checkInAddress() {
  const asked = /^#\d+$/.test(location.hash) ? Number(location.hash.slice(1)) : -1;
  return asked >= 0 && asked < SUMMARY.checks.length ? asked : rankedChecks()[0];
}

function start() {
  for (const begin of [
    startTheme,
    startChecks,
    startFindings,
    startChart,
    startTable,
    startModules,
    startDtypes,
    startScaler,
    startSizes,
    startUpdates,
    startKeys,
    startPrint,
  ])
    begin();
  window.addEventListener("hashchange", () => checkInAddress() !== state.check && showCheck(checkInAddress()));
  if (SUMMARY.checks.length) showCheck(checkInAddress());
  else {
    for (const panel of byId("main").children) panel.hidden = true;
    byId("main").prepend(el("p", { class: "panel" }, "No check ran."));
  }
}

start();
