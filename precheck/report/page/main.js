// Starts the page: its parts, and the check that the address names or that is worst.

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
    startLayers,
    startBinades,
    startLosses,
    startScaler,
    startSizes,
    startUpdates,
    startKeys,
  ])
    begin();
  startPrint(() => grids.grid);
  window.addEventListener("hashchange", () => checkInAddress() !== state.check && showCheck(checkInAddress()));
  if (SUMMARY.checks.length) showCheck(checkInAddress());
  else for (const panel of byId("main").querySelectorAll(":scope > :not(#nothing, #selftest)")) panel.hidden = true;
}

start();
