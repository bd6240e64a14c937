// What every page has: its theme, kept for the next one where the browser keeps anything; paper; and the key that filters.

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

/** Paper is white and narrow, and has no scroll bars. `grid()` is the page's table. */
function startPrint(grid) {
  const set = (printing) => {
    document.documentElement.classList.toggle("paper", printing);
    setTheme(printing ? "light" : kept());
    if (!grid()) return;
    grid().printing = printing;
    grid().draw();
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
