from machine import Rules, NOW, JUMPS_MS
from service import Service
from pathlib import Path
from hypothesis import settings, strategies as st, HealthCheck
from hypothesis.stateful import rule
class InProcess(Rules):
    def begin(self, folder: Path) -> Service:
        return Service(folder, NOW)
    @rule(jump=st.sampled_from(JUMPS_MS), moment=st.none() | st.tuples(st.integers(0, 5), st.sampled_from([-1, 1])))
    def wait(self, jump, moment):
        moments = self.model.moments()
        now = self.model.now_ms + jump
        if moment and moments:
            now = max(self.model.now_ms, moments[moment[0] % len(moments)] + moment[1])
        while now in moments:
            now += 1
        self.model.now_ms = self.service.now_ms = now
import os
N=int(os.environ.get("N","20")); S=int(os.environ.get("S","30"))
TestInProcess = InProcess.TestCase
TestInProcess.settings = settings(max_examples=N, stateful_step_count=S, deadline=None, database=None, derandomize="R" not in os.environ, suppress_health_check=list(HealthCheck))
