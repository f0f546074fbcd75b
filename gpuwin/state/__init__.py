"""Immutable states that an operator keeps between batches: a batch that fails leaves nothing behind."""

from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys.dictionary import KeyDictionary
from gpuwin.state.panes.pane_state import PaneState
from gpuwin.state.panes.runs import Run
from gpuwin.state.panes.walks import WindowBatch

__all__ = ["BytesHeap", "KeyDictionary", "PaneState", "Run", "WindowBatch"]
