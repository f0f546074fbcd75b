"""Immutable states that an operator keeps between batches: a batch that fails leaves nothing behind."""

from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import KeyDictionary
from gpuwin.state.panes import PaneState
from gpuwin.state.runs import Run
from gpuwin.state.windows import WindowBatch

__all__ = ["BytesHeap", "KeyDictionary", "PaneState", "Run", "WindowBatch"]
