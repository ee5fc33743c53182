"""What a memory should hold: the six commands on a dict, written without the library."""

from typing import Any

State = dict[str, str]
ROOT = "/memories"


def below(state: State, path: str) -> list[str]:
    """The file at a path, or those below it."""
    return [path] if path in state else [one for one in state if one.startswith(path + "/")]


def is_free(state: State, path: str) -> bool:
    """Whether a new file or directory can be at a path: nothing is there, no parent is a file."""
    parts = path.split("/")
    parents = ["/".join(parts[:end]) for end in range(3, len(parts))]
    return not below(state, path) and not any(parent in state for parent in parents)


def after(state: State, command: dict[str, Any]) -> State | None:
    """The state after a command; None if it is to be refused."""
    match command:
        case {"command": "create", "path": path, "file_text": text}:
            return {**state, path: text} if is_free(state, path) else None
        case {"command": "insert", "path": path, "insert_text": text}:
            return {**state, path: f"{text}\n{state[path]}"} if path in state else None
        case {"command": "str_replace", "path": path, "old_str": old, "new_str": new}:
            if state.get(path, "").count(old) != 1:
                return None
            return {**state, path: state[path].replace(old, new)}
        case {"command": "delete", "path": path}:
            gone = below(state, path)
            return {one: state[one] for one in state if one not in gone} if gone else None
        case {"command": "rename", "old_path": old, "new_path": new}:
            moved = below(state, old)
            if not moved or not is_free(state, new) or new.startswith(old + "/"):
                return None
            return {(new + one[len(old) :] if one in moved else one): state[one] for one in state}
    raise AssertionError(command)


def listed(state: State) -> set[str]:
    """The paths that a view of the root shows, of files two levels deep at most."""
    return {*state, *(one.rsplit("/", 1)[0] + "/" for one in state if one.count("/") == 3)}


def shown(text: str) -> list[str]:
    """The lines that a view of a file shows."""
    return (text.removesuffix("\n") if text else "").split("\n")
