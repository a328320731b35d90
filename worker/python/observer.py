#!/usr/bin/env python3
"""An observer whose environments are in Python: any id that gymnasium.make knows, any of EnvPool's as "envpool/ID", a class
of one's own (a gymnasium.Env, or a gymnasium.vector.VectorEnv without autoreset, which gets num_envs), or a game of
PettingZoo's.

The supervisor starts it for a job whose /environment has "gymnasium", "class" or "pettingzoo", and watches it like any
worker. It shows how a worker in another language is made. Everything runs on one thread, but for
the beats during an import.

    worker_session.py  messages to the supervisor and the agent
    environments.py    environments, and the checks of what they return
    Group              environments that are stepped together, and ask the agent together
    Observer           plays the episodes that the agent asks for
"""
import os
import struct
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # an isolated interpreter does not look there
writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # into this folder
from environments import find_environments, open_environments
from worker_session import (
    INTERNAL, INVALID, SHUTDOWN,
    Failure, Hurry, Line, Segment, Session, import_package, np, work,
)  # fmt: skip

sys.dont_write_bytecode = writes_none

# The methods that an observer and the agent have.
RUN_EPISODE, STEP, DESCRIBE, RUN_EVALUATION = 2, 3, 21, 22


# ---- groups ----
class Group:
    """Steps its environments, and asks the agent for all their actions in one request.

    Environments of Gymnasium have no states that could be saved. But an episode follows from its seed and its actions:
    these are the state, and whoever loads it plays the episode again up to there. A checksum of the observations and
    rewards tells whether it came to the same place; an environment that did not begins a new episode."""

    ENDED, FAILED, ABSENT, LIFE_LOST = 1 | 2, 8, 16, 32  # environment.h's flags; the last ends no episode
    # The episode and the step of the reset, by which it was seeded, and the checksum; the actions follow.
    STATE = struct.Struct("<QQI")
    STATE_BYTES_MAX = 1 << 20  # of one environment: an episode of more actions has no state

    def __init__(self, job, number, first, count, progress, evaluation=False):
        self.number, self.first, self.count = number, first, count
        self.environments = open_environments(job, first, count, progress, evaluation)
        e = self.environments
        # An environment of A agents has A rows, which follow one another.
        self.agents, self.rows = e.agents, count * e.agents
        # The rows of each environment, as an index.
        self.at = list(range(count)) if e.agents == 1 else [slice(i * e.agents, (i + 1) * e.agents) for i in range(count)]
        # The rows' observations; behind them, in a request, the last ones of episodes that have ended.
        self.shown = np.zeros((2 * self.rows, *e.observation.shape), e.observation.dtype)
        self.sent = np.zeros_like(self.shown)  # in place of them, unless all environments are live
        self.rewards = np.zeros(self.rows, "<f4")
        self.flags = np.zeros(self.rows, "u1")
        self.masks = np.zeros((self.rows, e.choices), "u1")
        self.metrics = [[]] * self.rows
        self.last_steps = np.zeros(count, "<u4")
        self.ended = []  # rows whose episode ended in the last step
        # Only jobs of REINFORCE have /rollout/begin: the environments of others go on.
        goes_on = job.get("rollout", {}).get("begin", "continue") == "continue"
        self.can_save = goes_on and not evaluation and e.can_save
        # Of each environment, where states are wanted: its last reset's episode and step, and since then the checksum
        # of what it showed, and the actions.
        self.resets = [(0, 0)] * count
        self.seen = [0] * count
        self.taken = [bytearray() for _ in range(count)]
        self.lost = []  # environments that a saved state led to another place
        self.asked = None  # the request under way

    def lent_bytes(self):
        """What `lend` takes of the segment; 0: the observations are too small to be lent."""
        return 0 if self.shown.nbytes < Segment.LEAST else 2 * Segment.rounded(self.shown.nbytes)

    def lend(self, segment):
        self.shown = segment.array(self.shown.shape, self.shown.dtype)
        self.sent = segment.array(self.sent.shape, self.sent.dtype)

    def begin(self, episode, steps, continues, closes, longest=0):
        self.episode, self.steps, self.step = episode, steps, 0
        self.longest = longest  # the step that cuts an episode of an evaluation; 0: none does
        self.closes = closes  # one more step behind the last, whose answer is empty
        self.continues = continues
        self.live = list(range(self.count))
        self.ended = []
        if not continues or self.lost:
            self._reset(self.lost if continues else self.live, 0)

    def _reset(self, which, step):
        for i, (observation, mask) in zip(which, self.environments.reset(which, self.episode, step)):
            self.resets[i] = (self.episode, step)
            self.taken[i].clear()
            self._show(i, observation, mask, True)
            self.seen[i] = 0
            self._note(i, self.NOTHING * self.agents)

    NOTHING = bytes(4)  # the float32 0.0

    def _rows_of(self, live):
        """The rows of these environments, as one index."""
        if self.agents == 1:
            return live
        return np.add.outer(np.asarray(live, np.int64) * self.agents, np.arange(self.agents)).ravel()

    def _note(self, i, rewards):
        """Adds what the environment shows, and the bytes of what it has earned by it, to its checksum."""
        if self.can_save:
            self.seen[i] = zlib.crc32(self.shown[self.at[i]], zlib.crc32(rewards, self.seen[i]))

    def _show(self, i, observation, mask, is_first):
        """Keeps the newest observation, with frames behind the ones before, and the mask."""
        frames, rows = self.environments.frames, self.at[i]
        if mask is not None:
            self.masks[rows] = mask
        if frames == 1:
            self.shown[rows] = observation
        elif is_first:
            self.shown[rows] = np.concatenate([observation] * frames, axis=-1)
        else:
            shown = self.shown[rows]
            width = shown.shape[-1] // frames
            shown[..., :-width] = shown[..., width:].copy()
            shown[..., -width:] = observation

    def _take(self, i, outcome):
        """Keeps what a step of the environment has come to. Whether its episode is over. An agent that has ended in an
        environment that goes on is absent."""
        observation, reward, flags, mask, metrics = outcome
        rows = self.at[i]
        self.rewards[rows], self.flags[rows], self.metrics[rows] = reward, flags, metrics
        self._show(i, observation, mask, self.agents == 1 and (flags & self.LIFE_LOST) != 0)
        self._note(i, self.rewards[rows].tobytes())
        if self.agents == 1:
            return (flags & self.ENDED) != 0
        ended = (self.flags[rows] & self.ENDED) != 0
        is_over = bool(np.all(ended | ((self.flags[rows] & self.ABSENT) != 0)))
        if not is_over:
            self.flags[rows][ended] |= self.ABSENT
        return is_over

    def _note_ended(self, i):
        """Keeps the last observations of the environment's rows that have ended, which a reset overwrites."""
        for row in range(i * self.agents, (i + 1) * self.agents):
            if self.flags[row] & self.ENDED:
                self.shown[self.rows + len(self.ended)] = self.shown[row]
                self.ended.append(row)

    def _gather(self, rows):
        """These live rows' observations, with the last ones behind them. While all are live they lie so already."""
        live, ended = len(self.live) * self.agents, len(self.ended)
        if live == self.rows:
            return self.shown[: live + ended]
        self.sent[:live] = self.shown[rows]
        self.sent[live : live + ended] = self.shown[self.rows : self.rows + ended]
        return self.sent[: live + ended]

    def _flags_before(self, rows):
        """Flags at step 0: which agents the rollout before has left absent."""
        flags = self.flags[rows] if self.continues else np.zeros(len(rows), "u1")
        flags = flags.reshape(-1, self.agents)
        over = np.all((flags & (self.ENDED | self.ABSENT)) != 0, axis=1, keepdims=True)
        return np.where(over, 0, flags & self.ABSENT).ravel()

    def ask(self, session):
        live, begins = self.live, self.step == 0
        rows = self._rows_of(live)
        numbers = np.asarray(live, "<u4") + np.uint32(self.first)
        rewards = np.zeros(len(rows), "<f4") if begins else self.rewards[rows]
        metrics = [value for row in self.ended for value in self.metrics[row]]
        flags = np.zeros((len(rows), 1 + self.masks.shape[1]), "u1")
        flags[:, 1:] = self.masks[rows]
        if not begins:
            flags[:, 0] = self.flags[rows]
        elif self.agents > 1:
            flags[:, 0] = self._flags_before(rows)
        flags[self._rows_of(self.lost), 0], self.lost = self.FAILED, []
        self.asked = session.request(
            STEP, (self.episode, self.step, self.number),
            (numbers, self._gather(rows), np.concatenate([rewards, np.asarray(metrics, "<f4")]), flags),
        )  # fmt: skip

    def take_actions(self, session):
        tensors = session.wait(self.asked).tensors
        self.asked = None
        action = self.environments.action
        count = len(self.live) * self.agents
        shape = (count, int(np.prod(action.shape, dtype=np.int64)))
        if len(tensors) != 1 or tensors[0].dtype != action.dtype or tensors[0].shape != shape:
            raise Failure(INTERNAL, f"the agent's answer to step {self.step}: expected {count} actions")
        return tensors[0].reshape(len(self.live), *self.environments.action_rows())

    def play_step(self, session):
        """Steps the environments with the agent's actions. Whether the group is done."""
        if 0 < self.steps == self.step:  # the closing step has been answered
            session.wait(self.asked)
            self.asked = None
            return True
        actions = self.take_actions(session)
        if self.can_save:
            for i, row in zip(self.live, actions):
                if len(self.taken[i]) <= self.STATE_BYTES_MAX:
                    self.taken[i] += row.tobytes()
        is_last, is_cut = self.step + 1 == self.steps, self.step + 1 == self.longest
        kept, over, self.ended = [], [], []
        for i, outcome in zip(self.live, self.environments.step(self.live, actions)):
            is_over = self._take(i, outcome)
            self.last_steps[i] = self.step + 1
            if self.steps == 0 and (is_over or is_cut):
                continue
            kept.append(i)
            if is_over or self.agents > 1:
                self._note_ended(i)
            if is_over:
                over.append(i)
        if over:
            self._reset(over, self.step + 1)
        self.live = kept
        self.step += 1
        return (is_last and not self.closes) or not kept

    def save(self):
        """The environments' states, each behind its length; None: they have none."""
        if not self.can_save or any(len(taken) > self.STATE_BYTES_MAX for taken in self.taken):
            return None
        places = zip(self.resets, self.seen, self.taken)
        states = [self.STATE.pack(*reset, seen) + taken for reset, seen, taken in places]
        return b"".join(struct.pack("<I", len(state)) + state for state in states)

    def load(self, states, check):
        """Puts the environments into the states at the beginning of these bytes; the bytes behind them. `check` is
        called between two environments."""
        for i in range(self.count):
            check()
            size = struct.unpack_from("<I", states)[0] if len(states) >= 4 else 0
            if not self.STATE.size <= size <= len(states) - 4:
                raise self._bad_state(i, f"{len(states)} bytes are left for it: expected its length, and as many more")
            if not self._play_again(i, states[4 : 4 + size]):
                self.lost.append(i)
            states = states[4 + size :]
        return states

    def _bad_state(self, i, text):
        name = self.environments.name
        return Failure(INVALID, f"{name}: environment {self.first + i}: its saved state: {text}")

    def _play_again(self, i, state):
        """The course of the environment since its reset. Whether it is the same as before."""
        action, shape = self.environments.action, self.environments.action_rows()
        row_bytes = self.environments.action_bytes()
        if len(state) < self.STATE.size or (len(state) - self.STATE.size) % row_bytes != 0:
            raise self._bad_state(i, f"{len(state)} bytes: expected {self.STATE.size} and {row_bytes} for each action")
        self.episode, step, seen = self.STATE.unpack_from(state)
        taken = np.frombuffer(state, action.dtype, offset=self.STATE.size).reshape(-1, *shape)
        self._reset([i], step)
        self.flags[self.at[i]] = 0
        try:
            for row in taken:
                for outcome in self.environments.step([i], [row]):
                    if self._take(i, outcome):
                        return False
        except Failure:  # the same actions have been taken before without one
            return False
        self.taken[i] += taken.tobytes()
        return self.seen[i] == seen


# ---- the observer ----
class Observer:
    STATES_BYTES_MAX = 1 << 28

    def __init__(self, line, session, job, worker):
        self.line, self.session, self.job = line, session, job
        self.evaluation = None  # the environments of evaluations, from the first one on
        count, groups = job["observers"]["environments"], job["observers"]["groups"]
        first = (worker - 1) * count
        begins = [g * count // groups for g in range(groups + 1)]
        self.groups = []
        for g in range(groups):
            self.groups.append(Group(job, g, first + begins[g], begins[g + 1] - begins[g], line.progress))
        size = sum(group.lent_bytes() for group in self.groups)
        if size > 0 and job["observers"]["count"] <= Segment.OBSERVERS_MAX:
            session.segment.create(worker, size)
            for group in self.groups:
                if group.lent_bytes() > 0:
                    group.lend(session.segment)
        text = self.groups[0].environments.describe().encode()
        session.wait(session.request(DESCRIBE, (), (np.frombuffer(text, "u1"),)))

    def play(self, call):
        episode, steps, begins, closes = call.args
        if begins == 2:
            states = call.tensors[0].tobytes()
            for group in self.groups:
                states = group.load(states, self.session.turns.check)
            if states:
                raise Failure(INVALID, f"{len(states)} bytes of saved states are left over: expected none")
        for group in self.groups:
            group.begin(episode, steps, begins != 0, closes != 0)
            group.ask(self.session)
        playing = list(self.groups)
        while playing:
            for group in list(playing):
                self.line.work += len(group.live)
                if not group.play_step(self.session):
                    group.ask(self.session)
                    continue
                playing.remove(group)
                if playing and steps == 0:  # the agent need not wait for its rows any more
                    self.session.unwanted.add(
                        self.session.request(STEP, (episode, group.step, group.number))
                    )
        states = [group.save() for group in self.groups]
        whole = b"" if None in states else b"".join(states)
        states = (np.frombuffer(whole, "u1"),) if 0 < len(whole) <= self.STATES_BYTES_MAX else ()
        self._answer(self.groups, states)

    def evaluate(self, call):
        """Plays the episodes of an evaluation all at once, in environments that are made at the first one."""
        first, count, longest, _ = call.args
        if self.evaluation is None or (self.evaluation.first, self.evaluation.count) != (first, count):
            self.evaluation = Group(self.job, 0, first, count, self.line.progress, evaluation=True)
        group = self.evaluation
        group.begin(0, 0, False, False, longest)
        group.ask(self.session)
        while not group.play_step(self.session):
            group.ask(self.session)
        self._answer([group])

    def _answer(self, groups, states=()):
        rewards = np.concatenate([g.rewards for g in groups])
        flags = np.concatenate([g.flags for g in groups])
        metrics = [v for g in groups for row in range(g.rows) if g.flags[row] & g.ENDED for v in g.metrics[row]]
        results = (
            np.concatenate([rewards, np.asarray(metrics, "<f4")]),
            flags,
            np.concatenate([g.last_steps for g in groups]),
            *states,
        )
        self.session.answer(results)

    def run(self):
        while not self.line.leave:
            call = self.session.call
            try:
                if not self.line.hurry:
                    self.session.turns.check()
                if call is not None and not self.line.hurry:
                    self.evaluate(call) if call.method == RUN_EVALUATION else self.play(call)
                else:
                    self.session.turns.turn(1.0)
            except Hurry:
                pass
            if self.line.hurry:
                self.session.decline(SHUTDOWN, "the job is ending")

    def close(self):
        for group in [*self.groups, *([self.evaluation] if self.evaluation else [])]:
            group.environments.close()


def observe(turns, start):
    session = Session(turns, start, 0, "the agent", (RUN_EPISODE, RUN_EVALUATION))
    job = session.greet()
    with turns.line.beating():
        import_package("gymnasium")
        find_environments(job)
    observer = Observer(turns.line, session, job, start["worker"])
    turns.line.send(Line.READY)
    observer.run()
    observer.close()


if __name__ == "__main__":
    work(observe, "pyzmq, numpy and gymnasium")
