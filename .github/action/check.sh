# Runs pytest and keeps its reports; the verdict comes last, so that the steps between see a report of a failure too.
set -uo pipefail
folder="${RUNNER_TEMP:?}/precheck"
mkdir -p "$folder"
status=0
# shellcheck disable=SC2086  # ARGS is split at blanks on purpose
pytest --precision="$PRECISION" --drift-report=markdown:"$folder/drift.md" --drift-report=sarif:"$folder/drift.sarif" \
  --drift-report=html:"$folder/drift.html" --drift-report=json:"$folder/drift.json" --junitxml="$folder/junit.xml" $ARGS || status=$?
echo "status=$status" >> "$GITHUB_OUTPUT"
if [ -d .pytest_cache/v/precheck ]; then
  echo "remembered=true" >> "$GITHUB_OUTPUT"
fi
if [ -f "$folder/drift.md" ]; then
  echo "folder=$folder" >> "$GITHUB_OUTPUT"
  cat "$folder/drift.md" >> "$GITHUB_STEP_SUMMARY"
fi
