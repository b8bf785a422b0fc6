"""Completion for shells as scripts that know every word themselves.

A completer that starts Python at every TAB, as typer's own and argcomplete's do, takes a tenth of a second and more
before the first answer. Commands, options and shipped names change only with the program, so the script holds them;
run ids and files are the shell's to look up. After an upgrade the script is written anew.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from common.algorithms import algorithm_names
from common.datasets.catalogue import DATA_SETS
from mapa.command_tree import Command, Parameter, command_tree
from mapa.commands.export import Format
from mapa.commands.runs import SORT_KEYS
from mapa.recording import ENGINES
from mapa.runs import KILLED, RUNNING
from mapa.scenario_files import shipped_names

_RUNS = {
    ("replay", "run"),
    ("bundle", "run"),
    ("verify", "subject"),
    ("compare", "names"),
    ("runs show", "run"),
}
_RUNS |= {
    ("export", "run"),
    ("runs rm", "names"),
    ("ledger", "run"),
    ("ledger show", "run"),
    ("cloud", "resume"),
}
_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("simulate", "engine"): ENGINES,
    ("runs list", "engine"): (*ENGINES, "processes", "network"),
    ("runs list", "state"): (RUNNING, KILLED, "finished", "interrupted", "diverged", "no-budget"),
    ("runs list", "sort"): tuple(SORT_KEYS),
    ("run", "broker"): ("auto", "mosquitto", "embedded"),
    ("export", "to"): tuple(one.value for one in Format),
}
_LINKS = ("lan", "wifi", "5g", "4g", "wan", "satellite")


def values_of(command: str, one: Parameter) -> str:
    """Return what completes a value: @runs, @scenarios, @files, @none, or words."""
    if (command, one.name) in _RUNS:
        return "@runs"
    if one.name == "scenario":
        return "@scenarios"
    if one.name == "algorithm" or (command, one.name) == ("algorithms", "names"):
        return " ".join(algorithm_names())
    if (command, one.name) in {("data get", "names"), ("scenarios", "data")}:
        return " ".join(DATA_SETS)
    if one.name in ("links", "link"):
        return " ".join(_LINKS)
    if (command, one.name) in _WORDS:
        return " ".join(_WORDS[command, one.name])
    if command == "completion":
        return " ".join(SHELLS)
    if command == "doctor" and one.name == "purposes":
        return " ".join(("containers", "dashboard", "cnn", "chaos", *DATA_SETS))
    return "@files" if one.value == "PATH" else "@none"


def script(shell: str) -> str:
    """Return the script for a shell of SHELLS."""
    return "\n".join(SHELLS[shell](command_tree())) + "\n"


_BASH = """\
# Completion of mapa for bash, written by `mapa completion bash`.
_mapa_values() {
  local kind=$1 word=$2 runs=runs i
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ ${COMP_WORDS[i]} == --runs-dir ]] && runs=${COMP_WORDS[i + 1]}
  done
  case $kind in
    @none) ;;
    @files) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    @scenarios)
      mapfile -t COMPREPLY < <(
        compgen -W "$_mapa_scenarios" -- "$word"
        compgen -f -X '!*.toml' -- "$word"
        compgen -d -- "$word"
      )
      ;;
    @runs)
      local name found=()
      if [[ $word == */* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
      fi
      [[ latest == "$word"* && ${COMP_WORDS[*]:1:2} != "runs rm" ]] && found+=(latest)
      for name in "$runs/$word"*/manifest.json; do
        [[ -f $name && ! -h $name && ! -h ${name%/manifest.json} ]] || continue
        name=${name%/manifest.json}
        found+=("$(printf %q "${name##*/}")")
      done
      COMPREPLY=("${found[@]}")
      ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$kind" -- "$word") ;;
  esac
}
"""

_BASH_END = """\
_mapa() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command= i inner=0
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    [[ ${COMP_WORDS[i]} == -* ]] && { [[ -n $command ]] && break || continue; }
    if [[ -z $command ]]; then
      command=${COMP_WORDS[i]}
      [[ -n ${_mapa_commands[$command]} ]] || break
    elif [[ " ${_mapa_commands[$command]} " == *" ${COMP_WORDS[i]} "* ]]; then
      command="$command ${COMP_WORDS[i]}"
      break
    else
      break
    fi
  done
  if [[ $before == -* && -n ${_mapa_takes[$command $before]} ]]; then
    _mapa_values "${_mapa_takes[$command $before]}" "$word"
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${_mapa_options[${command:-mapa}]}" -- "$word")
  elif [[ -n ${_mapa_commands[${command:-mapa}]} ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${_mapa_commands[${command:-mapa}]}" -- "$word")
  else
    _mapa_values "${_mapa_arguments[$command]:-@none}" "$word"
  fi
}
complete -F _mapa mapa"""


def _bash(commands: list[Command]) -> Iterator[str]:
    yield _BASH
    yield f"_mapa_scenarios={shlex.quote(' '.join(shipped_names()))}"
    yield "declare -gA _mapa_commands=(" + _pairs(_inner(commands)) + ")"
    yield "declare -gA _mapa_options=(" + _pairs({_key(one): " ".join(_names(one)) for one in commands}) + ")"
    yield (
        "declare -gA _mapa_takes=("
        + _pairs(
            {
                f"{' '.join(one.words)} {name}": values_of(" ".join(one.words), option)
                for one in commands
                for option in one.options
                if option.value
                for name in option.options
            }
        )
        + ")"
    )
    yield (
        "declare -gA _mapa_arguments=("
        + _pairs(
            {_key(one): values_of(" ".join(one.words), one.arguments[0]) for one in commands if one.arguments}
        )
        + ")"
    )
    yield _BASH_END


def _zsh(commands: list[Command]) -> Iterator[str]:
    yield "#compdef mapa"
    yield "# Completion of mapa for zsh, written by `mapa completion zsh`."
    yield "_mapa() {"
    yield "  local -a names; local command= word i"
    yield "  for ((i = 2; i < CURRENT; i++)); do"
    yield "    word=${words[i]}"
    yield "    [[ $word == -* ]] && { [[ -n $command ]] && break || continue; }"
    yield "    if [[ -z $command ]]; then command=$word"
    yield "      [[ $command == (" + "|".join(sorted(set(_inner(commands)) - {"mapa"})) + ") ]] || break"
    yield '    else command="$command $word"; break; fi'
    yield "  done"
    yield "  if [[ ${words[CURRENT - 1]} == -* ]]; then"
    yield '    case "$command ${words[CURRENT - 1]}" in'
    for one in commands:
        for option in one.options:
            if option.value:
                said = _zsh_values(values_of(" ".join(one.words), option))
                patterns = "|".join(shlex.quote(f"{' '.join(one.words)} {name}") for name in option.options)
                yield f"      {patterns}) {said}; return ;;"
    yield "    esac"
    yield "  fi"
    yield "  if [[ ${words[CURRENT]} == -* ]]; then"
    yield '    case "$command" in'
    for one in commands:
        described = " ".join(_described(name, option) for option in one.options for name in option.options)
        yield f"      {shlex.quote(' '.join(one.words))}) names=({described}); _describe option names; return ;;"
    yield "    esac"
    yield "  fi"
    yield '  case "$command" in'
    children = _inner(commands)
    for one in commands:
        if _key(one) in children:
            said = " ".join(
                _named(child) for child in commands if child.words[:-1] == one.words and child.words
            )
            more = "" if one.words != ("ledger",) else "; " + _zsh_values("@runs")
            yield f"    {shlex.quote(' '.join(one.words))}) names=({said}); _describe command names{more} ;;"
        elif one.arguments:
            said = _zsh_values(values_of(" ".join(one.words), one.arguments[0]))
            yield f"    {shlex.quote(' '.join(one.words))}) {said} ;;"
    yield "  esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _mapa ]]; then _mapa "$@"; else compdef _mapa mapa; fi'


def _zsh_values(kind: str) -> str:
    if kind == "@runs":
        return "names=(latest runs/*/manifest.json(N:h:t)); compadd -a names; _files -/"
    if kind == "@scenarios":
        return f"compadd {' '.join(shipped_names())}; _files -g '*.toml'"
    return {"@files": "_files", "@none": "_message value"}.get(kind, f"compadd {kind}")


def _fish(commands: list[Command]) -> Iterator[str]:
    yield "# Completion of mapa for fish, written by `mapa completion fish`."
    yield "function __mapa_runs"
    yield "  for file in runs/*/manifest.json; basename (dirname $file); end"
    yield "  echo latest"
    yield "end"
    yield "function __mapa_is"
    yield "  set -l words (commandline -opc)[2..-1]"
    yield "  set -l named (string match -v -- '-*' $words)"
    yield "  set -l n (count $argv)"
    yield "  test $n -eq 0; and return 0"
    yield '  test (count $named) -ge $n; and test "$named[1..$n]" = "$argv"'
    yield "end"
    yield "function __mapa_bare"
    yield "  test (count (string match -v -- '-*' (commandline -opc)[2..-1])) -eq (count $argv); and __mapa_is $argv"
    yield "end"
    yield "complete -c mapa -f"
    for one in commands:
        words = " ".join(one.words)
        if one.words:
            condition = f"__mapa_bare {' '.join(one.words[:-1])}".strip()
            yield f"complete -c mapa -n {_fq(condition)} -a {one.words[-1]} -d {_fq(one.about)}"
        here = f"__mapa_is {words}" if words else "__mapa_bare"
        for option in one.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.options)
            takes = _fish_values(values_of(words, option)) if option.value else ""
            yield f"complete -c mapa -n {_fq(here)} {names}{takes} -d {_fq(option.help)}"
        if one.arguments:
            said = _fish_values(values_of(words, one.arguments[0])).removeprefix(" -x").removeprefix(" -r")
            if said:
                yield f"complete -c mapa -n {_fq(here)}{said}"


def _fish_values(kind: str) -> str:
    if kind == "@runs":
        return " -x -a '(__mapa_runs)'"
    if kind == "@scenarios":
        return f" -x -a {_fq(' '.join(shipped_names()) + ' (__fish_complete_suffix .toml)')}"
    return {"@files": " -r -F", "@none": " -x"}.get(kind, f" -x -a {_fq(kind)}")


SHELLS: dict[str, Callable[[list[Command]], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _key(command: Command) -> str:
    return " ".join(command.words) or "mapa"


def _inner(commands: list[Command]) -> dict[str, str]:
    """Return the commands of each group, and of the program, by its key."""
    found: dict[str, list[str]] = {}
    for one in commands:
        if one.words:
            found.setdefault(" ".join(one.words[:-1]) or "mapa", []).append(one.words[-1])
    return {key: " ".join(names) for key, names in found.items()}


def _names(command: Command) -> list[str]:
    return [*(name for option in command.options for name in option.options), "--help"]


def _pairs(values: dict[str, str]) -> str:
    return " ".join(f"[{shlex.quote(key)}]={shlex.quote(value)}" for key, value in values.items())


def _described(name: str, option: Parameter) -> str:
    return shlex.quote(f"{name}:{option.help.replace(':', ' ')}")


def _named(command: Command) -> str:
    return shlex.quote(f"{command.words[-1]}:{command.about.replace(':', ' ')}")


def _fq(text: str) -> str:
    """Quote for fish, where a backslash escapes within single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
