"""Mistakes that the tests of the fast tier must find: what `make mutants` plants."""

import dataclasses

UNIT = "tests/unit"
ALGORITHMS = f"{UNIT}/algorithms"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A mistake.

    Args:
        name: what is wrong, in a few words.
        file: where, below the project's root.
        old: the code that is right; it stands there once.
        new: what takes its place.
        tests: files or tests that are expected to find it; none of the others is run.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, source: str) -> str:
        """Return the source with the mistake.

        Raises:
            ValueError: the code that is right does not stand there once.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: expected {self.old!r} once in {self.file}, found it {count} times")
        return source.replace(self.old, self.new)


def mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    """Return a mistake in a file of the package."""
    return Mutant(name, f"rltrainer/{file}", old, new, tests)


BUFFER = f"{UNIT}/data/test_replay_buffer.py"
RETURNS = f"{UNIT}/functional/test_returns.py"
LOSSES = f"{UNIT}/functional/test_losses.py"
OFF_POLICY = f"{ALGORITHMS}/actor_critic/test_sac_and_td3.py"
ORDER = f"{UNIT}/trainers/test_order_and_counts.py"
WRITES = "tests/faults/test_order_of_writes.py"
RESUME = "tests/resume/test_resume.py::test_resume_in_process"
COMMANDS = f"{UNIT}/tools/cli/test_defaults_and_names.py"
TENSOR_ROLLOUTS = f"{UNIT}/collect/test_tensor_rollouts.py"
LOOPS = f"{UNIT}/execution/test_cpu_loop.py"
TENSOR_ENVS = f"{UNIT}/envs/tensors/test_tensor_vector_env.py"

MUTANTS = [
    # Returns and advantages
    mutant("GAE: a truncated step does not bootstrap", "functional/returns.py",
           "next_value.masked_fill(terminated, 0.0)", "next_value.masked_fill(ends, 0.0)", RETURNS),
    mutant("GAE: lambda is left out", "functional/returns.py",
           "torch.full_like(reward, gamma * lambda_)", "torch.full_like(reward, gamma)", RETURNS),
    mutant("GAE: the trace goes on over ends", "functional/returns.py",
           "gamma * lambda_).masked_fill_(ends, 0.0)", "gamma * lambda_).masked_fill_(terminated, 0.0)", RETURNS),
    mutant("V-trace: rho is not clipped", "functional/returns.py",
           "rho, c = ratio.clamp(max=rho_bar)", "rho, c = ratio", RETURNS),
    mutant("n steps: one discount too few", "data/ring.py",
           "powers.index_select(0, length)", "powers.index_select(0, length - 1)", BUFFER),
    mutant("n steps: a window goes on over the end of an episode", "data/ring.py",
           "inside[1:] = stops[:-1].cumsum(0) == 0", "inside[1:] = True", BUFFER),
    mutant("transitions: a terminated one bootstraps", "data/ring.py",
           "discount.masked_fill_(terminated, 0.0)", "discount", BUFFER),
    # Losses
    mutant("PPO: the ratio is clipped on one side", "functional/losses.py",
           "ratio.clamp(1 - clip, 1 + clip)", "ratio.clamp(max=1 + clip)", LOSSES),
    mutant("PPO: the larger of the two surrogates", "functional/losses.py",
           "(ratio * advantage).minimum(", "(ratio * advantage).maximum(", LOSSES),
    mutant("PPO: the smaller of the two value losses", "algorithms/policy_gradient/ppo.py",
           "return plain.maximum(", "return plain.minimum(", f"{ALGORITHMS}/policy_gradient/test_ppo.py"),
    mutant("A2C: entropy is a cost", "algorithms/policy_gradient/a2c.py",
           "parts.append(-self.entropy_coef.value * entropy)", "parts.append(self.entropy_coef.value * entropy)",
           f"{ALGORITHMS}/policy_gradient/test_a2c.py"),
    mutant("DQN: double chooses with the target network", "algorithms/q_learning/dqn.py",
           "None if self.params.double else output", "output", f"{ALGORITHMS}/q_learning/test_c51.py"),
    mutant("PQN: actions are no places in the output", "algorithms/q_learning/pqn.py",
           "self.policy.unscale(batch.action)", "batch.action", f"{ALGORITHMS}/q_learning/test_pqn.py"),
    mutant("Symmetry: actions are not mirrored", "algorithms/symmetry.py",
           "action=self.action(batch.action)", "action=batch.action", f"{ALGORITHMS}/test_symmetry.py"),
    mutant("Distillation: the teacher's action stays in the env's scale", "algorithms/policy_gradient/distillation.py",
           "self.policy.unscale(self.teacher.act(obs))", "self.teacher.act(obs)",
           f"{ALGORITHMS}/policy_gradient/test_distillation.py"),
    mutant("RND: bonuses end with an episode", "algorithms/policy_gradient/rnd.py",
           "ends[:-1] = ~rollout.valid[1:]", "ends[:-1] = rollout.ends[:-1]",
           f"{ALGORITHMS}/policy_gradient/test_rnd.py"),
    mutant("SAC: the target leaves the entropy out", "algorithms/actor_critic/sac.py",
           "value - self.temperature() * log_prob if", "value if", OFF_POLICY),
    mutant("SAC: the temperature goes the wrong way", "algorithms/actor_critic/sac.py",
           "return -self.temperature.log_alpha *", "return self.temperature.log_alpha *", OFF_POLICY),
    mutant("FlashSAC: the actor sees statistics of its observations alone", "algorithms/actor_critic/flashsac.py",
           "joined_obs(batch), True)", "batch.obs, True)", f"{ALGORITHMS}/actor_critic/test_flashsac.py"),
    mutant("repeated noise: kept for a step too many", "nets/noise.py",
           "torch.where(is_due, num_steps, num_left) - 1", "torch.where(is_due, num_steps + 1, num_left) - 1",
           f"{UNIT}/nets/test_noise.py"),
    mutant("TD3: the larger of the critics' values", "algorithms/actor_critic/td3.py",
           "return q.amin(0)", "return q.amax(0)", OFF_POLICY),
    mutant("TD3: the target's noise is not clipped", "algorithms/actor_critic/td3.py",
           "noise.clamp_(-self.params.target_noise_clip, self.params.target_noise_clip)", "noise", OFF_POLICY),
    mutant("TD3: the actor moves in every step", "algorithms/actor_critic/td3.py",
           "% self.params.actor_update_interval == 0", "% self.params.actor_update_interval >= 0", OFF_POLICY),
    mutant("FQL: the flow learns actions behind an end", "algorithms/offline/fql.py",
           ' * batch.extra.get("is_data", 1.0)', "", f"{ALGORITHMS}/offline/test_fql.py"),
    mutant("IQL: the expectile of the other side", "functional/losses.py",
           "(error.detach() > 0)", "(error.detach() < 0)", LOSSES),
    mutant("CQL: the gap is a reward", "algorithms/offline/cql.py",
           "return loss + self.params.conservative_coef", "return loss - self.params.conservative_coef",
           f"{ALGORITHMS}/offline/test_cql.py"),
    mutant("Cal-QL: a ceiling for a floor", "algorithms/offline/cal_ql.py",
           "].maximum(", "].minimum(", f"{ALGORITHMS}/offline/test_cal_ql.py"),
    mutant("returns to go: nothing follows a time limit", "data/ended_trajectories.py",
           "last / (1 - gamma) if", "0.0 if", "tests/unit/data/test_ended_trajectories.py"),
    mutant("FQE: the next action is the data's", "algorithms/offline/fqe.py",
           "self.policy.act(next_obs))", "batch.action)", f"{ALGORITHMS}/offline/test_fqe.py"),
    mutant("quantiles: tau of the other side", "functional/losses.py",
           "(error < 0).to(error.dtype)", "(error > 0).to(error.dtype)", LOSSES),
    # Minibatches and weights
    mutant("means: padding counts", "functional/losses.py",
           "(weight.sum() if total is None else total)", "weight.numel()", LOSSES),
    mutant("minibatches: padding weighs as much as data", "algorithms/minibatches.py",
           "batch.weight = batch.weight * is_real[k]", "pass", f"{ALGORITHMS}/test_on_policy_algorithm.py"),
    mutant("DQN: importance weights are left out", "algorithms/q_learning/dqn.py",
           "(losses * batch.weight).mean()", "losses.mean()", f"{ALGORITHMS}/q_learning/test_dqn.py"),
    mutant("PER: weights favour what is drawn often", "data/prioritized.py",
           "else -beta", "else beta",
           f"{UNIT}/data/test_prioritized.py"),
    mutant("PER: priorities without their exponent", "data/prioritized.py",
           "EPSILON).pow_(self.alpha)", "EPSILON)", f"{UNIT}/data/test_prioritized.py"),
    # Updates
    mutant("target networks: tau is a share of the old weights", "nets/target.py",
           "list(online.parameters()), self.tau)", "list(online.parameters()), 1 - self.tau)",
           f"{UNIT}/nets/test_target.py"),
    mutant("target networks: the interval is one step late", "nets/target.py",
           "self.num_calls.item() % self.interval == 0", "self.num_calls.item() % self.interval == 1",
           f"{UNIT}/nets/test_target.py"),
    mutant("gradients: the limit scales small ones up", "updates/transforms.py",
           "(gradient.norm + 1e-6)).clamp_(max=1.0)", "(gradient.norm + 1e-6))",
           f"{UNIT}/updates/test_update_params.py"),
    mutant("Adam: the second moment is not corrected", "updates/adam.py",
           "(1 - beta2**num_steps).sqrt()", "torch.ones_like(num_steps)", f"{UNIT}/updates/test_adam.py"),
    mutant("schedules: they do not stop at their end", "schedules.py",
           "(self.end - self.start) * min(progress / self.until, 1.0)",
           "(self.end - self.start) * (progress / self.until)", f"{UNIT}/test_schedules.py"),
    # Normalisers
    mutant("normaliser: the means' distance adds no variance", "nets/normalizer.py",
           " + delta.square() * self.count * count / total) / total", ") / total", f"{UNIT}/nets/test_normalizer.py"),
    mutant("normaliser: returns go on over ends", "functional/returns.py",
           "~ends[:-1]]).to(reward.dtype)", "torch.ones_like(ends[:-1])]).to(reward.dtype)",
           RETURNS, f"{UNIT}/nets/test_normalizer.py"),
    mutant("normaliser: moments stay on the device of the data", "nets/normalizer.py",
           "x = to_device(x, self.mean.device).double()", "x = x.double()",
           "tests/devices/test_runs.py::test_a_run_gives_the_numbers_of_the_cpu"),
    # The loop
    mutant("warm-up: samples of the random phase owe steps", "trainers/off_policy_trainer.py",
           "self.env_step - stats.num_env_steps >= params.warmup_num_env_steps",
           "self.env_step >= params.warmup_num_env_steps", ORDER),
    mutant("gradient steps per sample: remainders are lost", "trainers/off_policy_trainer.py",
           "state.num_samples += stats.num_collected_steps", "state.num_samples = stats.num_collected_steps", ORDER),
    mutant("best score: an equal one is better", "trainers/run_state.py",
           "score > self.score)", "score >= self.score)", ORDER),
    mutant("best score: NaN is one", "trainers/run_state.py",
           "return not math.isnan(score) and (", "return (", ORDER),
    mutant("stop_fn: a run goes on after it", "trainers/trainer_params.py",
           "        if isinstance(answer, bool):\n            return answer",
           "        if isinstance(answer, bool):\n            return False",
           ORDER, f"{UNIT}/trainers/test_callbacks.py"),
    mutant("test steps explore", "trainers/trainer.py",
           "explore=False)", "explore=True)", ORDER),
    mutant("intervals: due once more at each multiple", "interval.py",
           "now // self.n > before // self.n", "now // self.n >= before // self.n", f"{UNIT}/test_interval.py"),
    # Envs of tensors
    mutant("envs of tensors: an episode is truncated a step late", "envs/tensors/tensor_vector_env.py",
           "num_steps >= limit", "num_steps > limit", TENSOR_ENVS),
    mutant("envs of tensors: the successor is of the next episode", "envs/tensors/tensor_vector_env.py",
           "self.observe(after)", "self.observe(following.state)", TENSOR_ENVS),
    mutant("Rollouts of envs of tensors: a schedule of exploration stands still", "execution/policy_execution.py",
           "known.follow(policy.progress())", "known.follow(0.0)", TENSOR_ROLLOUTS),
    mutant("Rollouts of envs of tensors: a graph does not see other rules", "execution/policy_execution.py",
           "self._key, plain(vars(self._rules))", "self._key, None", "tests/devices/test_tensor_rollouts.py"),
    mutant("final observations of one number: too many are cut off", "types.py",
           "torch.arange(num_steps, device=index.device)", "index[: num_steps // 16]", LOOPS),
    mutant("compiled loops: a counter in Python counts once", "execution/cpu_loop.py",
           "if effects.is_modified(changed) and", "if False and", LOOPS),
    mutant("compiled loops: one step where the compiler is off", "execution/cpu_loop.py",
           "if torch.compiler.is_compiling():", "if True:", LOOPS),
    # Seeds
    mutant("seeds: all parts of a run share one", "trainers/trainer.py",
           "part.seed(derive_seed(seed, name, *stream))", "part.seed(seed)", ORDER),
    mutant("seeds: streams do not depend on the seed", "seeding.py",
           "(seed, *path)))", "(0, *path)))", f"{UNIT}/test_seeding.py"),
    # Ranks
    mutant("ranks: each counts alike, however much of the batch it has", "updates/transforms.py",
           "gradient.scale(self.share)", "pass",
           "tests/contract/test_ranks.py::test_two_ranks_train_as_one"),
    mutant("ranks: advantages are standardised by each rank alone", "ranks/ranks.py",
           "return pooled(torch.stack(self.gather(moments(x, weight), is_equal=True)))",
           "return moments(x, weight)", "tests/contract/test_ranks.py::test_two_ranks_train_as_one"),
    mutant("ranks: statistics are of one rank's samples", "ranks/ranks.py",
           "pooled(torch.stack(self.gather(own, is_equal=True)))", "pooled(own.unsqueeze(0))",
           f"{UNIT}/functional/test_moments.py"),
    mutant("ranks: envs are numbered within their rank", "envs/adapter/episode_clock.py",
           "derive_seed(self._root(), self.first_env + n,", "derive_seed(self._root(), n,",
           f"{UNIT}/envs/test_deferred_envs.py"),
    mutant("ranks: a board is read before all have written", "ranks/board.py",
           "            self._wait()\n", "", f"{UNIT}/ranks/test_board.py"),
    # Resuming
    mutant("resume: a restored run's schedules begin again", "trainers/trainer.py",
           "        self._checkpoints.follow(state)\n        self._note_progress()",
           "        self._checkpoints.follow(state)", RESUME),
    mutant("resume: counters begin at 0", "trainers/trainer.py",
           "            self.state = state\n            self._set_up()",
           "            state.counters = type(state.counters)(epoch=state.counters.epoch)\n"
           "            self.state = state\n            self._set_up()", RESUME),
    mutant("resume: the collector's random numbers begin again", "collect/collector.py",
           "generator=self.generator.get_state(),",
           "generator=torch.Generator().manual_seed(1).get_state(),", RESUME),
    mutant("retention: the worst are kept", "checkpoint/store.py",
           "sorted(scored, reverse=True)", "sorted(scored)",
           f"{UNIT}/checkpoint/test_store.py::test_which_stay"),
    # Normalised critics
    mutant("categorical critics: the target is the higher one", "algorithms/actor_critic/categorical_sac.py",
           "expectation(q).argmin(0)", "expectation(q).argmax(0)",
           f"{ALGORITHMS}/actor_critic/test_categorical_sac.py"),
    mutant("unit rows: they stay as a step leaves them", "nets/blocks.py",
           "self.weight.copy_(unit(self.weight))", "unit(self.weight)", f"{UNIT}/nets/test_blocks.py"),
    mutant("categorical critics: running statistics in updates", "algorithms/actor_critic/categorical_sac.py",
           "critic(joined_obs(batch), torch.cat([batch.action, next_action]), None, True)",
           "critic(joined_obs(batch), torch.cat([batch.action, next_action]))",
           f"{ALGORITHMS}/actor_critic/test_categorical_sac.py"),
    # On the disk
    mutant("fsync: none of a checkpoint's members", "checkpoint/folder.py",
           "        size = stream.tell()\n        stream.flush()\n        os.fsync(stream.fileno())",
           "        size = stream.tell()\n        stream.flush()", WRITES),
    mutant("fsync: none of a manifest", "checkpoint/folder.py",
           "        os.fsync(stream.fileno())\n    sync_folder(folder)", "    sync_folder(folder)", WRITES),
    mutant("fsync: none of the folder of rows", "checkpoint/store.py",
           "            sync_folder(self._rows)\n", "", WRITES),
    mutant("fsync: none of a single file", "files/atomic_write.py",
           "            os.fsync(file.fileno())", "            pass", WRITES),
    mutant("fsync: none of a new checkpoint's folder", "checkpoint/folder.py",
           "        os.fsync(stream.fileno())\n    sync_folder(folder)", "        os.fsync(stream.fileno())", WRITES),
    mutant("fsync: none of the run's folder", "checkpoint/store.py",
           "        sync_folder(self.folder)", "        pass", WRITES),
    mutant("rename: a file has its name before it is flushed", "files/atomic_write.py",
           "                os.fsync(file.fileno())\n        os.replace(temporary, path)",
           "                os.replace(temporary, path)\n                os.fsync(file.fileno())",
           WRITES),
    mutant("rename: the old checkpoint goes before the new name is flushed", "checkpoint/folder.py",
           "            sync_folder(path.parent)\n            remove(previous)",
           "            remove(previous)\n            sync_folder(path.parent)",
           WRITES),
    mutant("rows: those of the last save are written again", "data/buffer_state.py",
           "self._oldest if not kept else", "self._oldest if kept else", f"{UNIT}/data/test_row_log.py"),
    mutant("rows: a trajectory that ends later goes on", "data/buffer_state.py",
           "np.maximum(ring.written - 1, 0)", "ring.written.copy()",
           f"{UNIT}/data/test_row_log.py::test_a_trajectory_that_ends_after_its_save_ends_in_the_next"),
    mutant("rows: a file that is gone is listed", "data/buffer_state.py",
           "if not all(map(is_there, files)):", "if False:", f"{UNIT}/data/test_row_log.py"),
    mutant("checksums: they are not compared", "checkpoint/folder.py",
           "found.hexdigest() != expected.sha256", "False",
           f"{UNIT}/checkpoint/test_store.py::test_a_damaged_one_is_passed_over_with_a_warning"),
    # Commands
    mutant("command: evaluate plays 10 episodes", "tools/cli/run_commands.py",
           '"--num-episodes", default=20', '"--num-episodes", default=10', COMMANDS),
    mutant("command: train's seed is 1", "tools/cli/train_command.py",
           '"--seed", default="0", metavar="SEEDS"', '"--seed", default="1", metavar="SEEDS"', COMMANDS),
]  # fmt: skip
