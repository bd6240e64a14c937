# Keeps one comment on the pull request: the first that begins with the marker is changed; where there is none, one is written.
set -euo pipefail
marker="<!-- precheck -->"
body="${RUNNER_TEMP:?}/comment.md"
{ echo "$marker"; cat "$REPORT"; } > "$body"
found=$(gh api --paginate "repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments" --jq ".[] | select(.body | startswith(\"$marker\")) | .id" | head -n 1)
if [ -n "$found" ]; then
  gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$found" --field body=@"$body" > /dev/null
else
  gh api --method POST "repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments" --field body=@"$body" > /dev/null
fi
