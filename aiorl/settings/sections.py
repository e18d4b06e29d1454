"""The sections of a run's settings that every algorithm shares."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from aiorl.settings.base import Count, Positive, Section, Whole, number, off_policy, on_policy

Vectorization = Literal["auto", "sync", "async", "vector_entry_point"]


class EnvSettings(Section):
    """The environment that the collectors step."""

    id: str = "aiorl/PendulumSwingup-v0"
    """Gymnasium id, `module:id` (the module is imported first), or `module:factory` that makes an env or vector env."""
    num_envs: Count = 16
    """Environments over all collectors together."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for the environment's constructor."""
    wrappers: tuple[str, ...] = ()
    """`module:callable` wrappers for each single env, innermost first (sync and async vectorization only)."""
    vectorization: Vectorization = "auto"
    """How single envs become a vector env; auto takes the env's own vector entry point where it has one, else sync."""
    max_episode_steps: Count | None = None
    """Time limit in steps of one env; null keeps the env's own."""
    on_nonfinite: Literal["stop", "end_episode"] = "stop"
    """What a NaN or Inf does; end_episode needs an env that resets single sub-envs (autoreset mode DISABLED)."""


class CollectionSettings(Section):
    """How experience is collected."""

    collectors: Count = 1
    """Collector processes; each steps its share of the envs."""
    on_collector_death: Literal["fail", "replace"] = "fail"
    """What follows when a collector dies, stalls or raises: the run fails, or another takes its place and shard."""
    max_replacements: Count = 5
    """Replacements within any replacement_window_s, over all collectors; one more death ends the run."""
    replacement_window_s: Positive = 300.0
    """See max_replacements."""
    chunk_steps: Annotated[Count, off_policy] = 1
    """Steps of every env between two packs."""
    lead: Annotated[Literal[0, 1], number, off_policy] = 1
    """Chunks that the collectors are ahead of the learner: 0 strict, 1 overlapped."""
    learning_starts: Annotated[Whole, off_policy] = 1_000
    """Env steps before the first update."""
    random_steps: Annotated[Whole | None, off_policy] = None
    """Env steps that act uniformly at random; null takes learning_starts."""
    rollout_steps: Annotated[Count, on_policy] = 24
    """Steps of every env in one rollout, which act under one weight version."""
    rollout_slots: Annotated[Count | None, on_policy] = None
    """Rollouts that each collector has room for; null takes algorithm.max_policy_lag + 1, and more are never full."""


class ReplaySettings(Section):
    """The replay memory of off-policy algorithms."""

    capacity: Annotated[Count, off_policy] = 1_000_000
    """Transitions kept over all collectors; rounded down to whole vector steps."""
    n_step: Annotated[Count, off_policy] = 1
    """Steps of reward summed into one transition."""


class LearnerSettings(Section):
    """The learner process."""

    batch_size: Annotated[Count, off_policy] = 256
    """Transitions per gradient step."""
    gradient_steps: Annotated[Count, off_policy] = 1
    """Gradient steps per tick."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Torch device: auto (cuda where there is one), cpu, or cuda:n."""


class BudgetSettings(Section):
    """When a run ends: the first one reached; whole ticks, rounded up."""

    env_steps: Count | None = None
    """Env steps over the whole run, resumed parts included."""
    gradient_steps: Count | None = None
    """Gradient steps over the whole run, resumed parts included."""
    seconds: Positive | None = None
    """Wall-clock seconds of training over the whole run, resumed parts included."""


class EvaluationSettings(Section):
    """Evaluations of the deterministic policy: at the end of a run, on the way, and by `aiorl evaluate`."""

    at_end: bool = True
    """Evaluate the final policy when a run completes."""
    every_env_steps: Count | None = None
    """Also evaluate whenever this many further env steps were trained on; null for never. A worker of its own plays the
    same episodes every time, at low priority and beside the training, which it changes in nothing; what comes due while
    it is playing is skipped. Results go to evaluations.jsonl, the best policy so far to checkpoints/best."""
    episodes: Count = 16
    """Episodes, rounded up to the same number for each env."""
    num_envs: Count = 16
    """Envs of the evaluator; never more than episodes."""
    max_episode_steps: Count = 100_000
    """An episode that is longer is cut there, and counts as truncated."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments for the evaluator's environment, over env.kwargs."""


class CheckpointSettings(Section):
    """When checkpoints are written, and what a run starts from."""

    every_env_steps: Count | None = None
    """Save whenever this many further env steps were trained on; null for never."""
    every_seconds: Positive | None = 600.0
    """Save whenever this many seconds went by; null for never."""
    keep: Count = 3
    """Newest checkpoints kept; only the newest holds the replay contents."""
    warm_start: str | None = None
    """Run directory or checkpoint whose policy (with its observation statistics) a new run starts from."""


class TelemetrySettings(Section):
    """What a run reports, and how often."""

    interval_s: Positive = 1.0
    """Seconds between two metrics records."""
    interval_ticks: Count | None = None
    """Ticks between two metrics records instead; makes their number independent of the machine's speed."""
    tensorboard: bool = True
    """Write TensorBoard event files beside metrics.jsonl."""
    trace: bool = False
    """Record what every process does when, in trace.json (for Perfetto, or `aiorl trace`); see docs/traces.md."""
    trace_slices: Count = 200_000
    """Slices that a trace keeps of each process, the newest; a vector step takes four, a gradient step of SAC four."""
    dump_rollouts: Annotated[bool, on_policy] = False
    """Write every rollout that was trained on to rollouts/<tick>-<collector>.safetensors; for debugging: it is much."""


class RuntimeSettings(Section):
    """Processes, threads, loop and deadlines."""

    kind: Literal["process", "inline"] = "process"
    """process: each worker a process; inline: the same workers as threads of this one, for tests and debugging."""
    loop: Literal["auto", "asyncio", "uvloop"] = "auto"
    """Event loop of the command line; auto takes uvloop where it is installed."""
    start_method: Literal["auto", "forkserver", "spawn"] = "auto"
    """How processes start; auto takes forkserver on Linux, spawn elsewhere."""
    collector_threads: Count | None = None
    """Torch threads of each collector; null divides the cores that this process may use."""
    learner_threads: Count | None = None
    """Torch threads of the learner; null divides the cores that this process may use."""
    startup_deadline_s: Positive = 120.0
    """A worker that is not ready after this long is killed, and named."""
    first_deadline_s: Positive = 120.0
    """Deadline of the first request of a kind."""
    deadline_s: Positive = 10.0
    """Least deadline of later requests; 10 times the slowest reply of that kind where that is more."""
    stop_ask_s: Positive = 5.0
    """How long a worker may take to stop by itself before it is terminated."""
    stop_terminate_s: Positive = 2.0
    """How long a terminated worker may take before it is killed."""
    save_timeout_s: Positive = 60.0
    """How long an ending run may take to finish its tick and save; 3 s at most when it is cancelled."""
