"""The node daemon: files whose bytes go to spare memory of the machine first, and are drained behind."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from . import _outcrop, _settings
from ._opened import Opened
from .errors import WrongType
from .settings import NodeSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Node(Opened, _outcrop.Node):
    """A connection to the node daemon of this user, which is started if there is none.

        with outcrop.Node(memory="4 GiB") as node, node.open("restart.7") as file:
            file.write(0, field)                    # returns when it is in memory of the node
            pending = file.write_async(field.nbytes, other)
            compute()                               # `other` must not change meanwhile
            pending.wait()
            file.sync()                             # on the file system

    memory:    the most memory that output takes, if this starts the daemon. Default: a quarter of the machine's.
    program:   the program `outcrop`, if it is not in PATH.
    All others are listed in `outcrop.settings.NodeSettings` and in docs/settings.md.

    A variable such as OUTCROP_NODE_MEMORY overrides a setting. Every thread may use it and its files.
    """

    __signature__ = _settings.signature(NodeSettings)
    _files: weakref.WeakSet[NodeFile]

    def __new__(cls, **settings: Unpack[NodeSettings]) -> Node:
        node = super().__new__(cls, _settings.text(NodeSettings, settings))
        node._files = weakref.WeakSet()
        return node._close_at_exit()

    def open(self, path: str | os.PathLike[str]) -> NodeFile:
        """Opens a file to be read and written. It is created if it is missing, and keeps what it has."""
        return NodeFile(self, path)

    def close(self) -> None:
        """Closes its files, and ends the connection. The daemon goes on draining. A second time, it does nothing."""
        try:
            for file in list(self._files):
                file.close()
        finally:
            self._close()

    def __repr__(self) -> str:
        return "<outcrop.Node, closed>" if self.closed else "<outcrop.Node>"


class NodeFile(Opened, _outcrop.NodeFile):
    """A file of which the newest bytes may be in memory of the node. Made by `Node.open`. Every thread may use it.

    Calls take effect in the order in which they are made, those that are pending included.
    """

    _path: str | os.PathLike[str]

    def __new__(cls, node: Node, path: str | os.PathLike[str]) -> NodeFile:
        if not isinstance(node, Node):
            raise WrongType(f"{node!r} is a {type(node).__name__}, and must be a node; call node.open({path!r})")
        file = super().__new__(cls, node, path)
        file._path = path
        node._files.add(file)
        return file._close_at_exit()

    @property
    def path(self) -> str | os.PathLike[str]:
        """Where it was opened."""
        return self._path

    def __repr__(self) -> str:
        return f"<outcrop.NodeFile {os.fspath(self._path)!r}{', closed' if self.closed else ''}>"
