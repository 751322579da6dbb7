"""The memory of a replay buffer: one ring of rows per env, and how transitions are found in it.

A ring is [R, N]: N envs of R rows, one more than each env's transitions. A row holds the observation that was acted
on, which is the successor of the row before; the spare row, the head, holds the newest transition's successor. If a
trajectory ends at a row, its successor is kept apart. A slot is a place in the ring; its flat index is row * N + env.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltrainer.data.sampler import Sampler
from rltrainer.data.storage import FinalObservations, FrameStack, PackedRowStorage, RowStorage, outside_text
from rltrainer.errors import ReplayBufferError, RLTrainerError, SpaceError
from rltrainer.spaces import Array, ValueRange
from rltrainer.tree import Tree, is_on_host, leaves, map_tree, to_array
from rltrainer.types import Rollout, Sequences, Transitions

MEMORY = "state"
"""The extra that holds the memory with which a policy acted."""
NUM_CHECKED = 100
"""An env's first transitions show whether its observations are stacks of frames."""


@dataclass(slots=True)
class NewTransitions:
    """M transitions on their way into a ring, in each env the oldest first."""

    # Trees [S, ...] by name, and where in S each transition is [M]; None takes all in order.
    columns: dict[str, Tree]
    source: Array | None
    # [M]: the env that each goes to, and whether its trajectory ends there.
    env: Array
    ended: Array
    # The successors of the K that ended, in their order [K, ...], and of each env's last one [N, ...], unless it ended.
    final_obs: Tree
    last_obs: Tree

    @classmethod
    def of_rollout(cls, rollout: Rollout) -> "NewTransitions":
        """Take the valid steps of a rollout [T, N]."""
        valid = to_array(rollout.valid)
        source = np.flatnonzero(valid)
        ended = to_array(rollout.ends).reshape(-1)[source]
        last_obs = rollout.last_obs
        # Before a step that is not valid a trajectory ends, as that step's observation is another one. But idle steps
        # at the end of an env's column repeat the successor, so the trajectory continues in the next rollout.
        if len(source) < valid.size and (idle := to_array(rollout.idle))[-1].any():
            continues = np.zeros_like(idle)
            continues[:-1] = idle[1:] & ~to_array(rollout.done)[:-1]
            continues.reshape(-1)[to_array(rollout.final_index)] = False
            ended &= ~continues.reshape(-1)[source]
            rows = torch.from_numpy((~idle).sum(0)), torch.arange(idle.shape[1])  # of each env's last observation
            last_obs = map_tree(lambda x, last: torch.cat([x, last.unsqueeze(0)])[rows], rollout.obs, last_obs)
        names = ("obs", "action", "reward", "terminated", "truncated", "extra")
        columns = {name: map_tree(lambda x: x.flatten(0, 1), getattr(rollout, name)) for name in names}
        final_obs = rollout.successors_at(torch.from_numpy(source[ended]).to(rollout.reward.device))
        taken = source if len(source) < valid.size else None
        return cls(columns, taken, source % valid.shape[1], ended, final_obs, last_obs)


class Ring:
    """The rings of N envs, which forget their oldest transitions; every stored one can be drawn."""

    def __init__(
        self,
        owner: str,
        specs: dict[str, Tree],
        env_capacity: int,
        num_envs: int,
        device: torch.device,
        frames: FrameStack | None,
    ) -> None:
        self.specs, self.env_capacity, self.num_envs, self.device = specs, env_capacity, num_envs, device
        self.num_rows = env_capacity + 1
        self.num_slots = self.num_rows * num_envs
        shape = (self.num_rows, num_envs)
        self.actions = ValueRange(specs["action"].space)
        storage = RowStorage if device.type == "cpu" else PackedRowStorage
        self._rows = storage(owner, specs, shape, device, self.actions)
        self.columns = self._rows.columns
        self.final = FinalObservations(specs["obs"], shape, device)
        self.sampler: Sampler | None = None
        # The files that hold its transitions, and up to which number of each env [N]; see `RowLog`.
        self.saved: dict[Any, Array] = {}
        self.memory = object()  # a new one after each `clear`, by which caches of the contents notice it
        self.frames = frames
        # The k - 1 oldest of an env that has forgotten some cannot be drawn: frames of their stacks are gone.
        self.num_frameless = 0 if frames is None else frames.num_frames - 1
        self.token: object | None = None  # stands for the run of the envs that stored the last steps
        # Whether an env's trajectory ends before its next transition.
        self.pending_end = np.zeros(num_envs, np.bool_)
        # Transitions that each env ever stored: the next one's row is this modulo R. Usually all envs are in step: then
        # one number replaces the table.
        self.written = np.zeros(num_envs, np.int64)
        self._level: int | None = 0
        # Whether the heads hold the observations that are acted on next: no trajectory has ended, and there is a token.
        self._continues = False
        self._envs = np.arange(num_envs)
        self._table = torch.zeros(4 if self.num_frameless == 0 else 7, num_envs, dtype=torch.int64, device=device)
        self._is_table_old = True

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(column.nbytes for column in self.columns.values()) + self.final.nbytes

    @property
    def _counts_on_device(self) -> bool:
        """Whether a draw reads there how much is stored."""
        return self.device.type != "cpu"

    def __len__(self) -> int:
        return int(self.sizes().sum()) if self._level is None else self.num_envs * min(self._level, self.env_capacity)

    def sizes(self) -> Array:
        """Return how many transitions each env holds [N]."""
        return np.minimum(self.written, self.env_capacity)

    # The next three depend on `written` alone, so they also answer for a state before it is loaded.

    def oldest(self, written: Array) -> Array:
        """Return the number of each env's oldest transition [N], numbered from the first that was ever stored."""
        return np.asarray(np.maximum(written - self.env_capacity, 0))

    def drawable_sizes(self, written: Array) -> Array:
        """Return how many transitions of each env, its newest, can be drawn [N]."""
        forgets = written > self.env_capacity
        return np.asarray(np.minimum(written, self.env_capacity) - self.num_frameless * forgets)

    def drawable_slots(self, written: Array) -> Tensor:
        """Return the flat indices of the transitions that can be drawn [M], ascending."""
        return self._newest(written, self.drawable_sizes(written))

    # Writing: `add` for a step of all envs, `store` for all else.

    def write(self, method: Callable[..., None], *values: Any) -> None:
        """Call `add` or `add_rollout`; repeat a call that an interrupt breaks off, then let the interrupt pass."""
        written = self.written
        try:
            method(*values)
        except RLTrainerError:
            raise  # a value does not fit, and nothing was stored
        except BaseException:
            if self.written is written:
                self.final.repair(self.heads())
                self._continues = False  # the heads may hold half a step
                with contextlib.suppress(Exception):
                    method(*values)
            raise

    def add(
        self, obs: Tree, action: Any, reward: Any, next_obs: Tree, terminated: Any, truncated: Any, extra: Any
    ) -> None:
        """Store one step of all envs, every leaf [N, ...]; see `ReplayBuffer.add`, for errors too."""
        if self.frames is not None:
            newest = self.frames.newest(obs), self.frames.newest(next_obs)
            if self.written[0] < NUM_CHECKED:
                self.frames.check(obs, next_obs)
            obs, next_obs = newest
        self._end_pending()
        number: Any = self.written if self._level is None else self._level
        rows = number % self.num_rows, (number + 1) % self.num_rows
        if self._level is None:
            rows = (rows[0], self._envs), (rows[1], self._envs)
        terminated, truncated = to_array(terminated), to_array(truncated)
        step = (obs, action, reward, next_obs, terminated, truncated, extra)
        self._rows.write(rows, step, holds_obs=self._continues)
        if np.count_nonzero(self.final.index[rows[1]]):
            self.final.release(self._slots_at(self.written + 1))
        has_ended = np.count_nonzero(terminated) or np.count_nonzero(truncated)
        if has_ended:
            done = np.flatnonzero(terminated | truncated)
            final_obs = self.columns["obs"].gather(self.on_device(self._slots_at(self.written + 1)[done]))
            self.final.put(self._slots_at(self.written)[done], final_obs)
        if self.sampler is not None:
            self._tell(self.sampler, self._slots_at(self.written), self.written + 1)
        level = None if self._level is None else self._level + 1
        continues = not has_ended and self.token is not None
        # In one statement without a call: no handler of a signal runs between its parts.
        self.written, self._level, self._is_table_old, self._continues = self.written + 1, level, True, continues

    def add_rollout(self, rollout: Rollout, token: object | None) -> None:
        """Store the valid steps of a rollout [T, N]; see `ReplayBuffer.add_rollout`, for errors too."""
        num_envs = rollout.reward.shape[1]
        if num_envs != self.num_envs:
            text = f"expected a rollout of {self.num_envs} envs, got one of {num_envs}"
            raise ReplayBufferError(f"ReplayBuffer.add_rollout: {text}")
        if self.frames is not None:
            newest = self.frames.newest
            last, final = newest(rollout.last_obs), newest(rollout.final_obs)
            if self.written[0] < NUM_CHECKED:
                self.frames.check(rollout.valid_cells(rollout.obs), rollout.valid_cells(rollout.next_obs))
            rollout = dataclasses.replace(rollout, obs=newest(rollout.obs, 2), last_obs=last, final_obs=final)
        for obs in (map_tree(lambda x: x.flatten(0, 1), rollout.obs), rollout.last_obs, rollout.final_obs):
            self.columns["obs"].check(obs)
        new = NewTransitions.of_rollout(rollout)
        for name, column in self.columns.items():
            column.check(new.columns[name])
        action = to_array(new.columns["action"])
        action = action if new.source is None else action[new.source]
        if not self.actions.holds(action):
            raise SpaceError(outside_text(self.columns["action"].name, self.actions, action, ("transition",)))
        self.continue_with(token)
        # A trajectory ends here if the rollout does not start with the successor of its last stored step.
        starts = to_array(rollout.starts) | ~to_array(rollout.valid | rollout.idle)[0]
        self.end_trajectory(starts | self._differs_from_head(map_tree(lambda x: x[0], rollout.obs)))
        self.store(new)

    def store(self, new: NewTransitions) -> tuple[Array, Array | None]:
        """Append transitions that were checked; if more come than fit into an env, only the newest.

        Return the flat indices of the kept ones [M], and which of the S values each of them holds [M].
        """
        count = np.bincount(new.env, minlength=self.num_envs)
        self._end_pending()
        place = np.empty_like(new.env)  # among the env's new transitions
        place[np.argsort(new.env, kind="stable")] = count_up(count)
        kept = place >= count[new.env] - self.env_capacity
        source = new.source
        if not kept.all():
            source = np.flatnonzero(kept) if source is None else source[kept]
        slots = ((self.written[new.env] + place) % self.num_rows) * self.num_envs + new.env
        ended, slots = slots[new.ended & kept], slots[kept]
        grows = np.flatnonzero(count)
        written = self.written + count
        heads = self._slots_at(written)[grows]
        self.final.release(np.concatenate([slots, heads]))
        self._rows.store(slots, new.columns, source, heads, new.last_obs, grows)
        self.final.put(ended, new.final_obs, np.flatnonzero(kept[new.ended]))
        if self.sampler is not None:
            self._tell(self.sampler, slots, written)
        self._note_written(written)
        return slots, source

    def _tell(self, sampler: Sampler, slots: Array, written: Array) -> None:
        """Report to the sampler slots [M] that are stored, and what is lost once each env has `written` [N]."""
        sampler.stored(self.on_device(slots))
        sampler.forgotten(self.on_device(self._lost(written)))

    def end_trajectory(self, envs: Array | None) -> None:
        """End the trajectories of some envs [N] bool, or all, before the next transition is written."""
        self.pending_end |= True if envs is None else envs

    def continue_with(self, token: object | None) -> None:
        """End all trajectories if the next steps are of another run of the envs."""
        if token is not self.token:
            self.pending_end[:] = True
            self.token = token

    def resume(self, token: object, obs: Tree) -> None:
        """Continue a loaded run in the envs where these observations [N, ...] are the successors of the last steps."""
        differs = self._differs_from_head(self.frames.newest(obs) if self.frames is not None else obs)
        self.token = token
        self.end_trajectory(differs & (self.final.index.reshape(-1)[self._slots_at(self.written - 1)] == 0))

    def clear(self) -> None:
        """Forget all transitions; the memory is kept."""
        if self.sampler is not None:
            self.sampler.forgotten(self._newest(self.written, self.sizes()))
        self.final.clear()
        self.pending_end[:] = False
        self.saved, self.memory = {}, object()
        self._note_written(np.zeros(self.num_envs, np.int64))

    def restore(
        self,
        written: Array,
        pending_end: Array,
        head: Tree,
        parts: list[tuple[Array, NewTransitions]],
        saved: dict[Any, Array],
    ) -> None:
        """Take over a checked state; `head` [N, ...] are the newest successors, `parts` start at numbers [N]."""
        self.clear()
        for start, new in parts:
            self._note_written(start)
            self.store(new)
        self._rows.store_heads(self._slots_at(written), head)
        self.token, self.saved = None, saved
        self.pending_end[:] = pending_end
        self._note_written(written.copy())

    def _differs_from_head(self, obs: Tree) -> Array:
        """Return which observations [N, ...] are not the successors of the last stored steps [N] bool."""
        on_host, column = self._rows.has_heads and is_on_host(obs), self.columns["obs"]
        head = column.row(1) if on_host else column.gather(self.on_device(self.heads()))
        return to_array(differ(*(map_tree(torch.as_tensor, tree) for tree in (head, obs))))

    def _end_pending(self) -> None:
        """Keep the successors of the last steps of the trajectories that end."""
        if np.count_nonzero(self.pending_end):
            newest = self._slots_at(self.written - 1)
            ends = self.pending_end & (self.written > 0) & (self.final.index.reshape(-1)[newest] == 0)
            self.final.put(newest[ends], self.columns["obs"].gather(self.on_device(self.heads()[ends])))
            self.pending_end[:], self._continues = False, False

    # Drawing.

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return the flat indices of transitions [B] or [K, B], drawn uniformly with replacement."""
        if len(shape) == 1:
            position = self._position(shape, generator)
        else:  # one call per batch: K batches take the same numbers as K calls for one batch, on every device
            position = torch.cat([self._position(shape[1:], generator) for _ in range(shape[0])])
        if self._level is None or self._counts_on_device:
            slots = self._at(position, *self._drawable_lookup())
        elif (forgotten := max(self._level - self.env_capacity, 0)) == 0:
            # All envs hold the same rows: their transitions are one stretch of the flat memory.
            slots = position
        else:
            slots = position.add_((forgotten + self.num_frameless) * self.num_envs).remainder_(self.num_slots)
        return slots if len(shape) == 1 else slots.view(shape)  # to read by a view takes 5 us longer

    def _position(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw positions [B] among the drawable transitions: none is rejected, whatever is forgotten or invalid."""
        if not self._counts_on_device:
            return torch.randint(self.num_drawable, shape, generator=generator, device=self.device)
        # A CUDA graph would repeat the host's number of transitions n, so divide a large number by the device's n and
        # take the rest. No transition is more likely than another by more than n / 2^62.
        large = torch.randint(2**62, shape, generator=generator, device=self.device)
        return large.remainder_(self._drawable_lookup()[0, -1])

    def refresh(self) -> tuple[Hashable, ...]:
        """Bring the table of the envs up to date, and return where the data lies, as far as that changes."""
        self._lookup()
        return (self.final.nbytes,)  # the store of final observations lies elsewhere after it has grown

    @property
    def num_drawable(self) -> int:
        """The number of transitions that can be drawn."""
        if self._level is None:
            return int(self.drawable_sizes(self.written).sum())
        return len(self) - self.num_frameless * self.num_envs * (self._level > self.env_capacity)

    def slots(self, position: Tensor) -> Tensor:
        """Return the flat indices at positions [B] in [0, len), counted env by env, oldest first."""
        return self._at(position, *self._lookup()[:2])

    def all_slots(self, chunk_size: int) -> Iterator[Tensor]:
        """Yield the flat indices of all transitions, in the order of `slots`, in chunks [M]."""
        size = len(self)
        for start in range(0, size, chunk_size):
            yield self.slots(torch.arange(start, min(start + chunk_size, size), device=self.device))

    def _at(self, position: Tensor, ends: Tensor, offset: Tensor) -> Tensor:
        env = torch.searchsorted(ends, position, right=True)
        row = (position + offset.index_select(0, env)) % self.num_rows
        return torch.add(env, row, alpha=self.num_envs)

    # Reading.

    def path(
        self, slots: Tensor, length: int, backwards: bool = False, drawable: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Walk along trajectories from slots [B] for a length L, and return the slots [L, B].

        Also return which slots belong to the trajectory [L, B]: beyond its end, or the end of the data, the last slot
        is repeated. `backwards` walks towards the start, up to the oldest transition that is `drawable`, or stored.
        """
        steps = torch.arange(length, device=slots.device) * (-self.num_envs if backwards else self.num_envs)
        path = (slots + steps.unsqueeze(1)) % self.num_slots
        ends = (path - self.num_envs) % self.num_slots if backwards else path
        edge = self._lookup()[2 + backwards + (drawable and self.num_frameless > 0)]
        stops = self.final.is_end(ends) | (path == edge.index_select(0, slots % self.num_envs))
        inside = torch.ones_like(stops)
        inside[1:] = stops[:-1].cumsum(0) == 0
        last = path.gather(0, inside.sum(0, keepdim=True) - 1)
        return torch.where(inside, path, last), inside

    def observations(self, slots: Tensor) -> Tree:
        """Return copies of observations, a tree [B, ...]; stacks repeat the first frame of a trajectory."""
        return self.columns["obs"].gather(slots) if self.frames is None else self._stack(slots, self.frames)

    def successors(self, slots: Tensor) -> Tree:
        """Return copies of the successors, a tree [B, ...]."""
        after = self.stored_successors(slots)
        frames = self.frames
        return after if frames is None else torch.cat([self._stack(slots, frames)[:, 1:], after.unsqueeze(1)], 1)

    def stored_successors(self, slots: Tensor) -> Tree:
        """Return copies of the successors as they are stored, single frames of stacks, a tree [B, ...]."""
        after = (slots + self.num_envs).remainder_(self.num_slots)
        return self.final.replace(slots, self.columns["obs"].gather(after))

    def _stack(self, slots: Tensor, frames: FrameStack) -> Tensor:
        path = self.path(slots, frames.num_frames, backwards=True)[0].flip(0).T
        found: Tensor = self.columns["obs"].gather(path.flatten())
        return found.view(*path.shape, *found.shape[1:])

    def transitions(self, slots: Tensor, n_step: int, gamma: float) -> Transitions:
        """Return the transitions that start at these slots [B]; see `ReplayBuffer.sample`."""
        columns = self.columns
        if n_step == 1:
            last, reward = slots, columns["reward"].gather(slots)
            discount = torch.full_like(reward, gamma)
        else:
            path, inside = self.path(slots, min(n_step, self.env_capacity))
            last, reward, discount = n_step_windows(path, inside, columns["reward"].flat[path], gamma)
        terminated = columns["terminated"].gather(last)
        return Transitions(
            obs=self.observations(slots),
            action=columns["action"].gather(slots),
            reward=reward,
            next_obs=self.successors(last),
            terminated=terminated,
            truncated=columns["truncated"].gather(last),
            discount=discount.masked_fill_(terminated, 0.0),
            index=slots,
            weight=torch.ones_like(reward),
            extra=columns["extra"].gather(slots) if columns["extra"].leaves else {},
        )

    def sequences(
        self, slots: Tensor, weight: Tensor | None, length: int, burn_in: int, n_step: int, gamma: float
    ) -> Sequences:
        """Return the sequences with their first trained transitions at slots [B] or [K, B], of these weights or 1."""
        start = slots.flatten()
        ahead, counts = self.path(start, length)
        before, _ = self.path(start, burn_in + 1, backwards=True, drawable=True)
        path = torch.cat([before[1:].flip(0), ahead])
        counts = torch.cat([counts.new_zeros(burn_in, len(start)), counts])
        # [T, B], or [K, T, B]: the batches of gradient steps come first.
        path, counts = (x.view(-1, *slots.shape).movedim(0, -2) for x in (path, counts))
        flat = path.flatten()
        batch = self.transitions(flat, n_step, gamma).reshape(*path.shape)
        batch.weight = counts.float() if weight is None else counts * weight.unsqueeze(-2)
        if MEMORY in batch.extra:
            batch.extra[MEMORY] = batch.extra[MEMORY].select(path.ndim - 2, 0)
        # A memory starts at a transition if the step before it is of another trajectory, or is no longer stored.
        follows = self.path(flat, 2, backwards=True, drawable=True)[1][1]
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return Sequences(**fields, first=~follows.view(path.shape))

    # Numbers of transitions, slots, and tables of them.

    def heads(self) -> Array:
        """Return the flat indices of the slots that are written next [N]; no trajectory ends there."""
        return self._slots_at(self.written)

    def newest_slots(self, env: int, size: int) -> Array:
        """Return the flat indices of an env's newest transitions [size], oldest first."""
        return (int(self.written[env]) - size + np.arange(size)) % self.num_rows * self.num_envs + env

    def _lost(self, written: Array) -> Array:
        """Return the slots of the heads, and of stored transitions that cannot be drawn."""
        heads = self._slots_at(written)
        if not self.num_frameless or not (forgets := written > self.env_capacity).any():
            return heads
        oldest = written - self.env_capacity + np.arange(self.num_frameless)[:, None]
        return np.concatenate([heads, self._slots_at(oldest)[:, forgets].reshape(-1)])

    def _newest(self, written: Array, sizes: Array) -> Tensor:
        rows = np.arange(min(int(written.max()), self.num_rows))[:, None]  # no more were ever written
        return self.on_device(np.flatnonzero((rows - (written - sizes)) % self.num_rows < sizes))

    def _slots_at(self, number: Array) -> Array:
        """Return the flat index of each env's transition of this number."""
        return number % self.num_rows * self.num_envs + self._envs

    def _note_written(self, written: Array) -> None:
        level = int(written[0]) if (written == written[0]).all() else None
        self.written, self._level, self._is_table_old, self._continues = written, level, True, False

    def _drawable_lookup(self) -> Tensor:
        return self._lookup()[-2:] if self.num_frameless else self._lookup()[:2]

    def _lookup(self) -> Tensor:
        """Return a table of the envs [4, N], with stacked frames [7, N]; always the same memory, which graphs read."""
        if self._is_table_old:
            written, sizes = self.written, self.sizes()
            # The end of an env's positions, its oldest row less their start, its newest, its oldest slot; with stacked
            # frames also the oldest slot, end and row of the transitions to be drawn.
            table = [*self._positions(sizes), self._slots_at(written - 1), self._slots_at(written - sizes)]
            if self.num_frameless:
                sizes = self.drawable_sizes(written)
                table += [self._slots_at(written - sizes), *self._positions(sizes)]
            # Nothing waits: pageable memory has been read when the call returns.
            self._table.copy_(torch.from_numpy(np.stack(table)), non_blocking=True)
            self._is_table_old = False
        return self._table

    def _positions(self, sizes: Array) -> tuple[Array, Array]:
        """Return where the positions of each env's newest end [N], and their first row less where they start [N]."""
        ends = np.cumsum(sizes)
        return ends, (self.written - sizes) % self.num_rows - (ends - sizes)

    def on_device(self, indices: Array) -> Tensor:
        """Copy indices [M] to the device."""
        # Nothing waits: pageable memory has been read when the call returns.
        return torch.from_numpy(indices).to(self.device, non_blocking=True)


def n_step_windows(path: Tensor, inside: Tensor, reward: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Lay a window of n steps over each path of slots [n, B]; the slots `inside` [n, B] belong to the window.

    Returns each window's last slot [B], its sum of gamma^i r_i, and gamma^k for its k steps, float32 [B].
    """
    # R = r_0 + gamma r_1 + ... + gamma^(k-1) r_(k-1), to be bootstrapped with gamma^k V (Sutton and Barto 2018,
    # equation 7.1). Powers in float64, as float32 would be off in the last places for long windows.
    length = inside.sum(0)
    powers = (gamma ** torch.arange(len(path) + 1, device=path.device, dtype=torch.float64)).float()
    # Rewards beyond the window are selected away, as 0 * nan is nan.
    rewards = torch.where(inside, reward, 0.0)
    last = path.gather(0, (length - 1).unsqueeze(0)).squeeze(0)
    return last, (powers[:-1].unsqueeze(1) * rewards).sum(0), powers.index_select(0, length)


def numbered(start: Array, stop: Array) -> tuple[Array, Array]:
    """Return env and number of each of M transitions: the first of each env, then the second, and so on.

    `start` and `stop` are [N]: each env's first number, and the number after its last.
    """
    count = np.maximum(stop - start, 0)
    env, offset = np.repeat(np.arange(len(count)), count), count_up(count)
    order = np.argsort(offset, kind="stable")
    return env[order], (start[env] + offset)[order]


def count_up(counts: Array) -> Array:
    """Return 0, 1, 2, ... up to each count [N], one after the other [sum of counts]."""
    first: Array = np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(len(first)) - first


def differ(tree: Tree, other: Tree) -> Tensor:
    """Return which of the values of two trees [M, ...] differ in any leaf, [M] bool on the first one's device."""
    pairs = zip(leaves(tree), leaves(other), strict=True)
    differs = [(a != b.to(a.device, a.dtype)).reshape(len(a), a.shape[1:].numel()).any(1) for a, b in pairs]
    return torch.stack(differs).any(0)
