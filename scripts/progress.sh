# shellcheck shell=bash
# Sourced by setup.sh and quickstart.sh: what runs for long says that it is alive.

# elapsed: minutes and seconds since this shell started
elapsed() { printf '%d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

# latest LOG: the last line about the progress of pip, a compiler or a training, shortened
latest() {
  local line
  line=$(grep -aE '(Collecting|Downloading|Building|Installing|building|epoch [0-9]+:|[[][0-9]+/[0-9]+[]]) ' "$1" |
    tail -n 1 | sed -E 's/.* \| //; s/^ *([[][0-9/]+[]]).* -c ([^ ]*\/)?([^ ]+).*/compiling \3 \1/; s/ +/ /g')
  printf '%s\n' "${line:-still running}" | cut -c 1-72
}

# with_progress LOG COMMAND...: every 10 seconds the time and what LOG says, until COMMAND ends
with_progress() {
  local log=$1 reporter status=0
  shift
  # asleep, it must not keep the output open for whoever reads it
  while sleep 10 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    printf '  %s  %s\n' "$(elapsed)" "$(latest "$log")"
  done &
  reporter=$!
  disown "$reporter"
  "$@" || status=$?
  # which cannot be ignored, as SIGTERM can be from before this shell
  kill -KILL "$reporter" 2>/dev/null || true
  return "$status"
}
