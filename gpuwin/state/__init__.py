"""What an operator knows between batches. Immutable states, so that a batch that fails leaves nothing behind."""

from gpuwin.state.heap import BytesHeap
from gpuwin.state.keys import KeyDictionary
from gpuwin.state.panes import PaneState
from gpuwin.state.runs import Run
from gpuwin.state.windows import WindowBatch, WindowGrid

__all__ = ["BytesHeap", "KeyDictionary", "PaneState", "Run", "WindowBatch", "WindowGrid"]
