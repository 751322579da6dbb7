# ruff: noqa: E501  # a row is a line
"""Arguments that break a rule: what is written, the error, and how its text begins; `~` stands for any text.

A rule has one row for each field that has it, `tests/unit/validation` has the values that a rule refuses.
"""

from collections.abc import Iterator

from rltrainer.errors import ArgumentError, EnvError, NonFiniteError, ParamsError, ReplayBufferError, SpaceError

Row = tuple[str, type[Exception], str]


def fields(call: str, owner: str, error: type[Exception], *rows: tuple[str, str]) -> Iterator[Row]:
    """Yield a row for each field and the text after the owner's name; `{}` in the call is where fields go."""
    for given, text in rows:
        yield call.format(given), error, f"{owner}.{text}"


DEVICE, COUNT, NOT_NEGATIVE = (
    "must be a device that PyTorch can use here",
    "must be a positive integer",
    "must be a non-negative integer",
)
FLAG, NET, LIMIT = "must be True or False", "must be a NetParams or None", "must be a number in [0, 1]"
EXTRA = "must be (shape, dtype), such as ((3,), torch.float32)"
NO_ENV, NO_GYM = "must be a gymnasium id or a factory of envs", "must be a gymnasium VectorEnv"
BOUNDS = "must be a bounded Box"
VECTOR = "obs: expected float32 (3,), or ('N', 3) for several"
MASK = "MultiBinary(3), or a Box of shape (3,): a flag for each choice; got ~ for Discrete"

ARGUMENTS: list[Row] = [
    # networks
    *fields("rl.NetParams({})", "NetParams", ParamsError,
        ("hidden_sizes=3", "hidden_sizes: must be a sequence of positive integers or None; got 3"),
        ("activation='relu'", "activation: must be a callable that makes a module, such as nn.ReLU or None; got 'relu'"),
        ("norm='group'", "norm: must be one of 'layer', 'batch_renorm', 'unit_batch_renorm', 'batch', 'unit_batch', 'unit_lerp', 'unit_residual' or None; got 'group'"),
        ("dropout=1.0", "dropout: must be a number in [0, 1); got 1.0"),
        ("dropout=None", "dropout: must be a number in [0, 1); got None"),
        ("encoder=torch.nn.Linear(2, 2)", "encoder: must be a callable (space of a leaf) -> module or None; got "),
        ("encoder='cnn'", "encoder: must be a callable (space of a leaf) -> module or None; got 'cnn'"),
        ("obs_encoder=torch.nn.Linear(2, 2)", "obs_encoder: must be a callable (observation space) -> module or None; got "),
        *((f"keys={keys}", "keys: must be a sequence of names or None; got ") for keys in ("'position'", "()", "[1]", "{'position'}")),
    ),
    ("rl.Actor(PARTS, BOX, rl.NetParams(keys=('positon',)))", ParamsError, "NetParams.keys: the observation has no part 'positon'. Did you mean 'position'"),
    ("rl.Actor(SPACE, BOX, rl.NetParams(keys=('position',)))", ParamsError, "NetParams.keys: must be None where observations are no Dict; got "),
    *((f"rl.{cls}(PARTS, BOX, critic_net=rl.NetParams(keys=('position',)), {option}=True)", ParamsError, f"{cls}.{option}: must be False where the critic has an encoder or keys of its own")
      for cls, option in (("ActorCritic", "share_encoder"), ("RecurrentActorCritic", "share_cell"))),
    ("rl.ActorCritic(PARTS, BOX, critic_net=rl.NetParams(encoder=rl.SmallConvEncoder), share_encoder=True)", ParamsError, "ActorCritic.share_encoder: must be False where the critic has an encoder"),
    *fields("rl.ActorCritic(SPACE, DISCRETE, {})", "ActorCritic", ParamsError,
        ("net=(64, 64)", f"net: {NET}; got "), ("critic_net={'norm': 'layer'}", f"critic_net: {NET}; got "),
        ("orthogonal_init=1", f"orthogonal_init: {FLAG}; got "), ("log_std_init='0'", "log_std_init: must be a finite number; got "),
        ("share_encoder=1", f"share_encoder: {FLAG}; got "), ("normalize_reward=None", f"normalize_reward: {FLAG}; got "),
        ("normalize_obs='yes'", f"normalize_obs: {FLAG}; got "),
        ("use_sde=True", "use_sde: must be False where actions are no Box, but Discrete(2); got "),
    ),
    *fields("rl.QNetwork(SPACE, DISCRETE, {})", "QNetwork", ParamsError,
        ("num_outputs=0", f"num_outputs: {COUNT}; got "), ("normalize_reward=1", f"normalize_reward: {FLAG}; got "), ("dueling=1", f"dueling: {FLAG}; got "),
    ),
    *fields("rl.SquashedActorCritic(SPACE, BOX, {})", "SquashedActorCritic", ParamsError,
        ("critic_net=(64, 64)", f"critic_net: {NET}; got "), ("num_outputs=0", f"num_outputs: {COUNT}; got "),
        ("normalize_reward=None", f"normalize_reward: {FLAG}; got "), ("num_critics=0", f"num_critics: {COUNT}; got "),
        ("log_std_init=3.0", "log_std_init: must be in [-20, 2]; got 3.0"), ("log_std_init='0'", "log_std_init: must be a finite number or None; got "),
        ("noise_repeat=0", f"noise_repeat: {COUNT}; got 0"), ("use_sde=True, noise_repeat=16", "noise_repeat: must be 1 with use_sde=True; got 16"),
    ),
    ("rl.GaussianActorCritic(SPACE, BOX, num_critics=1.0)", ParamsError, f"GaussianActorCritic.num_critics: {COUNT}; got "),
    ("rl.DiscreteActorCritic(SPACE, DISCRETE, num_critics=0)", ParamsError, f"DiscreteActorCritic.num_critics: {COUNT}; got "),
    *fields("rl.RecurrentActorCritic(SPACE, DISCRETE, {})", "RecurrentActorCritic", ParamsError,
        ("cell='rnn'", "cell: must be one of 'gru', 'lstm'; got "), ("cell_size=0", f"cell_size: {COUNT}; got "),
        ("share_cell=1", f"share_cell: {FLAG}; got "), ("normalize_reward='yes'", f"normalize_reward: {FLAG}; got "),
    ),
    *fields("rl.CategoricalQNetwork(SPACE, DISCRETE, {})", "CategoricalQNetwork", ParamsError,
        ("num_atoms=1", "num_atoms: must be an integer of at least 2; got "), ("v_min=float('nan')", "v_min: must be a finite number; got "),
        ("v_max=None", "v_max: must be a finite number; got "), ("v_max=-10.0", "v_max: must be greater than v_min (-10.0); got "),
    ),
    ("rl.QuantileQNetwork(SPACE, DISCRETE, num_quantiles=1)", ParamsError, "QuantileQNetwork.num_quantiles: must be an integer of at least 2; got "),
    *(row for cls, space in (("Actor", "DISCRETE"), ("ActorCritic", "DISCRETE"), ("SquashedActorCritic", "BOX")) for row in fields(
        f"rl.{cls}(SPACE, {space}, {{}})", cls, ParamsError,
        ("use_sde=1", f"use_sde: {FLAG}; got "), ("sde_sample_interval=0", "sde_sample_interval: must be a positive integer or None; got "),
        ("sde_sample_interval=4", "sde_sample_interval: must be None without use_sde=True; got "),
    )),
    *((f"rl.DiscreteActorCritic(SPACE, {space})", SpaceError, "DiscreteActorCritic.action_space: must be Discrete, with at least two choices; got ")
      for space in ("BOX", "gym.spaces.MultiDiscrete([2, 3])", "gym.spaces.Discrete(1)")),
    *((f"rl.{cls}(SPACE, SPACE)", SpaceError, f"{cls}.action_space: must be Discrete; got ") for cls in ("CategoricalQNetwork", "QuantileQNetwork")),
    ("rl.RecurrentActorCritic(SPACE, gym.spaces.Box(-1.0, 1.0, (2, 2)))", SpaceError, "RecurrentActorCritic.action_space: must be ~ of one axis; got "),
    *((f"rl.{cls}.for_spaces(SPACE, {space})", SpaceError, f"{cls}.action_space: must be Discrete, or MultiDiscrete, MultiBinary or Box of one axis; got ~. Flatten it in a wrapper of the env.")
      for cls in ("Actor", "ActorCritic") for space in ("PARTS", "gym.spaces.Box(-1, 1, (2, 2))", "gym.spaces.Box(-1, 1, ())", "gym.spaces.MultiBinary((2, 3))", "gym.spaces.MultiDiscrete(np.array([[2, 2], [2, 2]]))")),
    *((f"rl.QNetwork.for_spaces(SPACE, {space})", SpaceError, "QNetwork.action_space: must be Discrete; got ~. ActorCritic takes several choices at once, DeterministicActorCritic and SquashedActorCritic a Box.")
      for space in ("PARTS", "gym.spaces.MultiDiscrete([2, 3])", "gym.spaces.MultiBinary(3)", "BOX")),
    *((f"rl.{cls}.for_spaces(SPACE, {space})", SpaceError, f"{cls}.action_space: must be a bounded Box of one axis with low < high; got ~. Give the env such a Box with gymnasium.wrappers.TransformAction, or use another policy.")
      for cls in ("DeterministicActorCritic", "SquashedActorCritic", "GaussianActorCritic", "FlowActorCritic") for space in (
        "PARTS", "DISCRETE", "gym.spaces.MultiBinary(3)", "gym.spaces.Box(-np.inf, np.inf, (2,))", "gym.spaces.Box(-1, 1, (2, 2))", "gym.spaces.Box(np.array([-1, 3]), np.array([1, 3]), dtype=np.float32)",
        "gym.spaces.Box(-3e38, 3e38, (1,))",
    )),
    *((f"rl.ActorCritic({space}, BOX, hidden_sizes=(4,)).predict({obs})", error, f"ActorCritic.predict: {text}") for space, obs, error, text in (
        ("SPACE", "np.zeros(4)", SpaceError, f"{VECTOR}; got float64 (4,)"), ("SPACE", "np.zeros((2, 2, 3))", SpaceError, f"{VECTOR}; got float64 (2, 2, 3)"),
        ("SPACE", "['a', 'b', 'c']", SpaceError, f"{VECTOR}; got <U1 (3,)"), ("SPACE", "{'a': 1}", SpaceError, VECTOR + "; got {'a': 1}"),
        ("SPACE", "None", SpaceError, f"{VECTOR}; got None. Pass what env.reset() or"), ("SPACE", "(np.zeros(3), {})", SpaceError, "obs: expected an array, got (array([0., 0., 0.]), {}). env.reset() returns"),
        ("STACKS", "np.zeros((3, 4))", SpaceError, "obs: expected uint8 (3, 4), or ('N', 3, 4) for several; got float64"),
        ("DISCRETE", "1.0", SpaceError, "obs: expected int64 (), or ('N',) for several; got float64 ()"), ("DISCRETE", "2", SpaceError, "obs: expected choices of Discrete(2), got array(2)"),
        ("gym.spaces.MultiBinary(2)", "[0, 2]", SpaceError, "obs: expected choices of MultiBinary(2), got array([0, 2])"),
        ("gym.spaces.Dict(a=SPACE)", "np.zeros(3)", SpaceError, "obs: expected a dict with the keys ['a'], got array([0., 0., 0.])"),
        ("gym.spaces.Dict(a=SPACE)", "{'b': 1}", SpaceError, "obs: expected a dict with the keys ['a'], got {'b': 1}"), ("gym.spaces.Dict(a=SPACE)", "{'a': 1}", SpaceError, 'obs["a"]: expected float32 (3,), or'),
        ("gym.spaces.Tuple((SPACE, SPACE))", "(np.zeros(3),)", SpaceError, "obs: expected a tuple of 2, got (array([0., 0., 0.]),)"),
        ("gym.spaces.Tuple((SPACE, SPACE))", "(np.zeros((2, 3)), np.zeros((4, 3)))", SpaceError, "obs: expected leaves of one number of observations, got [(2,), (4,)]"),
        ("gym.spaces.Tuple((SPACE, SPACE))", "(np.zeros((2, 3)), np.zeros(3))", SpaceError, "obs: expected leaves of one number of observations, got [(), (2,)]"),
        *(("gym.spaces.Dict(a=SPACE)", f"{{'a': [0.0, {value}, 0.0]}}", NonFiniteError, f'obs["a"]: holds {text}') for value, text in (
            ("np.nan", "NaN or infinity: array"), ("np.inf", "NaN or infinity: array"), ("1e39", "a number that is infinite in float32: "),
        )),
    )),
    *((f"rl.ActorCritic({space}, BOX, hidden_sizes=(4,)){ask}({obs})", SpaceError, f"ActorCritic.act: {text}") for ask in (".act", "") for space, obs, text in (
        ("SPACE", "np.zeros((1, 3))", "obs: expected a tensor ('N', 3), got array(~. policy.predict(obs) t"), ("SPACE", "[0.0, 0.0, 0.0]", "obs: expected a tensor ('N', 3), got [0.0, 0.0, 0.0]. policy.predict"),
        ("SPACE", "torch.zeros(2, 4)", "obs: expected shape ('N', 3), got (2, 4). The policy was made for these"), ("SPACE", "torch.zeros(3)", "obs: expected shape ('N', 3), got (3,). Give it an axis in front: obs.unsq"),
        ("SPACE", "torch.zeros(())", "obs: expected shape ('N', 3), got ()."), ("TREE", "torch.zeros(2, 3)", "obs: expected a dict with the keys ['a', 'b'], got tensor"),
        ("TREE", "{'a': torch.zeros(1, 3), 'b': torch.zeros(1)}", 'obs["b"]: expected a tuple of 2, got tensor'),
        ("TREE", "{'a': torch.zeros(1, 3), 'b': (torch.zeros(1), torch.zeros(1, 2))}", """obs["b"][1]: expected shape ('N', 3), got (1, 2)"""),
    )),
    ("rl.ActorCritic.for_envs(envs, None, (64, 64))", ArgumentError, "ActorCritic: too many positional arguments. Give each argument by"),
    ("rl.Policy.for_envs(envs)", ArgumentError, "Policy: is abstract. Build one of its subclasses"),
    ("rl.ActorCritic.for_envs(None)", ParamsError, f"ActorCritic.for_envs.envs: {NO_GYM}; got None (NoneType). Make one with rl.make_vec(env_id, num_envs=1)."),
    ("rl.ActorCritic.for_envs(gym.vector.SyncVectorEnv)", ParamsError, f"ActorCritic.for_envs.envs: {NO_GYM}; got ~sync_vector_env.SyncVectorEnv'> (type). Make one with rl.make_vec(env_id, num_"),
    *((f"rl.ActorCritic.for_spaces(gym.spaces.Dict(action_mask={leaf}, observation=BOX), {space})", SpaceError, f'ActorCritic.observation_space["action_mask"]: must {text}') for leaf, space, text in (
        ("gym.spaces.MultiBinary(4)", "gym.spaces.Discrete(3)", f"be a {MASK}"),
        ("gym.spaces.MultiDiscrete([2, 2, 2])", "gym.spaces.Discrete(3)", f"be a {MASK}"),
        ("gym.spaces.Box(0, 1, (3, 1))", "gym.spaces.Discrete(3)", f"be a {MASK}"),
        ("gym.spaces.MultiBinary(3)", "gym.spaces.MultiDiscrete([2, 3])", "be a MultiBinary(5), or a Box of shape (5,): a flag for each choice; got ~ for MultiDiscrete"),
        ("gym.spaces.MultiBinary(2)", "gym.spaces.MultiBinary(2)", "be a MultiBinary(4), or a Box of shape (4,): a flag for each choice; got ~ for MultiBinary"),
        ("gym.spaces.MultiBinary(2)", "BOX", "be left out, or have another name, as actions are no choices; got ~ for Box"),
    )),
    ("rl.QNetwork.for_spaces(gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(2)), DISCRETE)", SpaceError, "Encoder.observation_space: must have a part beside 'action_mask'; got "),
    ("rl.QNetwork.for_spaces(gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(2), a=BOX), DISCRETE, rl.NetParams(keys=['a', 'action_mask']))", ParamsError, "NetParams.keys: 'action_mask' is no input"),
    ("rl.QNetwork.for_spaces(gym.spaces.Text(3), DISCRETE)", SpaceError, "unsupported space Text"),
    *((f"rl.{cls}.for_spaces({spaces})", SpaceError, f"{cls}.{space}_space: must be a gymnasium space; got ") for cls in (
        "Actor", "ActorCritic", "QNetwork", "DeterministicActorCritic", "SquashedActorCritic", "GaussianActorCritic", "FlowActorCritic",
    ) for given in ("None", "'Box'", "gym.spaces.Box", "(3,)") for space, spaces in (("observation", f"{given}, SPACE"), ("action", f"SPACE, {given}"))),
    *((f"rl.ActorCritic.for_spaces(gym.spaces.Box(0, 255, {shape}, np.uint8), DISCRETE)", SpaceError, f"ConvEncoder.observation_space: images (a Box of three axes) must be at least 36 x 36; got Box(0, 255, {shape}, uint8) (Box). NetParams(encoder=rl.SmallConvEncoder) is for small ones; flatten other arrays in a wrapper.")
      for shape in ("(35, 84, 3)", "(3, 84, 35)", "(2, 3, 4)")),
    # exploration
    ("rl.EpsilonGreedy(1.1)", ParamsError, "EpsilonGreedy.epsilon: must be a number in [0, 1] or a callable~; got 1.1"),
    ("rl.EpsilonGreedy('0.1')", ParamsError, "EpsilonGreedy.epsilon: must be a number in [0, 1] or a callable~; got ~Write 0.1 without quotes."),
    ("rl.GaussianNoise('0.1')", ParamsError, "GaussianNoise.std: must be a non-negative finite number or a callable~; got ~Write 0.1 without quotes."),
    ("rl.GaussianNoise(-0.1)", ParamsError, "GaussianNoise.std: must be a non-negative finite number or a callable~; got -0.1"),
    *fields("rl.OrnsteinUhlenbeckNoise({})", "OrnsteinUhlenbeckNoise", ParamsError,
        ("std=-1.0", "std: must be a non-negative finite number or a callable~; got "), ("theta=-0.1", "theta: must be a non-negative finite number; got "),
        ("dt=0.0", "dt: must be a positive finite number; got "),
    ),
    *((f"rl.{explores}(torch.zeros(1, 1), {space}, 0.0, None)", SpaceError, f"{explores.partition('(')[0]}.action_space: {rule}") for explores, space, rule in (
        ("EpsilonGreedy()", "BOX", "must be Discrete; got ~. Explore continuous actions with GaussianNoise."), ("EpsilonGreedy()", "gym.spaces.MultiDiscrete([2, 2])", "must be Discrete; got "),
        *((name, space, BOUNDS) for name in ("GaussianNoise()", "OrnsteinUhlenbeckNoise()") for space in ("DISCRETE", "gym.spaces.Box(-np.inf, np.inf, (2,))")),
    )),
    # algorithms and updates
    *fields("rl.PPO(policy, {})", "PPO", ParamsError, *(
        (given, f"params: must be of class PPOParams; got {found}. Write PPOParams(lr=..., ...).")
        for given, found in (("{'lr': 1}", "{'lr': 1} (dict)"), ("{}", "{} (dict)"), ("int", "<class 'int'> (type)"))
    )),
    ("rl.SAC(rl.SquashedActorCritic(SPACE, BOX), 0)", ParamsError, "SAC.params: must be of class SACParams; got 0 (int). Write SACParams(lr=..., ...)."),
    ("rl.PPO(rl.ActorCritic, rl.PPOParams())", ParamsError, "PPO.policy: must be of class ActorCritic; got the class ActorCritic. Build it with ActorCritic.for_envs(envs)."),
    ("rl.PPO(rl.PPOParams(), None)", ParamsError, "PPO.policy: must be of class ActorCritic; got PPOParams. The policy comes first: PPO(policy, params)."),
    ("rl.PPO(None)", ParamsError, "PPO.policy: must be of class ActorCritic; got NoneType. Build it with ActorCritic.for_envs(envs)."),
    *((f"ppo.run_training({given})", ParamsError, f"PPO.run_training.params: must be trainer params, such as OnPolicyTrainerParams(training_collector=...); got {found}") for given, found in (
        ("rl.OnPolicyTrainerParams", "<class 'rltrainer.trainers.on_policy_trainer.OnPolicyTrainerParams'> (type)"), ("None", "None (NoneType)"), ("{}", "{} (dict)"),
    )),
    *((f"rl.BC(rl.{cls}(SPACE, {space}))", ParamsError, f"BC.policy: must be a policy with a `distribution` and an `actor`; got {cls}. Build it with Actor.for_envs")
      for cls, space in (("QNetwork", "DISCRETE"), ("DeterministicActorCritic", "BOX"))),
    *((f"rl.{name}(rl.RecurrentActorCritic(SPACE, {space}))", ParamsError, f"{name}.policy: must ~; got RecurrentActorCritic")
      for name, space in (*((name, "DISCRETE") for name in ("PPO", "A2C", "IMPALA", "TRPO", "REINFORCE", "DQN", "BC")), ("SAC", "BOX"))),
    *((f"rl.{name}.recommended('CartPole-v1')", ParamsError, f"{name}.recommended.envs: {NO_GYM}; got 'CartPole-v1'") for name in (
        "A2C", "PPO", "IMPALA", "TRPO", "REINFORCE", "RecurrentPPO", "DQN", "QRDQN", "C51", "DiscreteSAC", "SAC", "TQC", "REDQ", "TD3", "DDPG", "CrossQ", "XQC", "SimbaV2", "FlashSAC", "PQN",
    )),
    *((f"rl.{cls}Params({given})", ParamsError, f"{cls}Params.{text}") for cls, given, text in (
        ("BC", "gamma=1", "gamma: must be left out; got 1"), ("BC", "n_step=10", "n_step: must be left out; got 10"),
        *(("DDPG", f"{name}={value}", f"{name}: must be left out; got {value} ~ TD3 adds to DDPG.") for name, value in (("target_noise", 0.4), ("target_noise_clip", 1.0), ("actor_update_interval", 4))),
        *(("TRPO", f"{name}=0.3", f"{name}: must be left out; got 0.3 ~TRPO trains the critic apart") for name in ("value_coef", "entropy_coef")),
        ("PPO", "optimizer=torch.optim.SGD, weight_decay=0.1", "weight_decay: must be left out; got 0.1 "), ("IMPALA", "c_bar=2.0", "c_bar: must be at most rho_bar, 1; got 2.0 (float)"),
    )),
    *((f"rl.PPO(policy, rl.PPOParams(optimizer={factory}))", ParamsError, "AlgorithmParams.optimizer: must return a torch.optim.Optimizer; got ") for factory in ("lambda parameters: None", "lambda parameters: torch.optim.Adam", "list")),
    ("ppo.make_optimizer(rl.PPOParams(), activation=torch.nn.ReLU())", ParamsError, "Optimizer.modules: must have parameters; got activation"),
    *((f"rl.seed({value})", ParamsError, "seed.n: must be an integer; got ") for value in ("None", "'1'", "1.0", "True", "[1]")),
    *((f"rl.{name}(rl.{name}.policy_class(SPACE, BOX, hidden_sizes=(4,), {options}), rl.{name}Params({params}))", ParamsError, f"{name}.policy.{text} (int)") for name, options, params, text in (
        ("SAC", "num_outputs=3", "", "num_outputs: must be 1; got 3"), ("TD3", "num_outputs=3", "", "num_outputs: must be 1; got 3"),
        ("DDPG", "", "", "num_critics: must be 1; got 2"), ("REDQ", "num_critics=1", "", "num_critics: must be at least num_target_critics (2); got 1"),
        ("TQC", "num_outputs=3", "num_dropped=3", "num_outputs: must be more than num_dropped (3); got 3"),
        ("TQC", "", "num_dropped=0", "num_outputs: must be more than 1, quantiles; got 1"),
    )),
    ("rl.CrossQ(rl.SquashedActorCritic(SPACE, BOX))", ParamsError, "CrossQ.policy: NetParams of its critics must have norm='batch_renorm', without which targets need a network of their own. Give it to net, and to critic_net."),
    ("rl.SAC(rl.SquashedActorCritic(SPACE, BOX, rl.NetParams(norm='batch_renorm')))", ParamsError, "SAC.policy: norm of its NetParams must be no batch norm, as updates of SAC leave running statistics where they start. CrossQ, XQC and FlashSAC train them."),
    *((f"rl.{name}(rl.CategoricalActorCritic(SPACE, BOX))", ParamsError, f"{name}.policy: NetParams of its critics must have norm='{norm}'. Give it to net, and to critic_net.")
      for name, norm in (("XQC", "unit_batch"), ("SimbaV2", "unit_lerp"), ("FlashSAC", "unit_residual"))),
    ("rl.SAC(rl.CategoricalActorCritic(SPACE, BOX))", ParamsError, "SAC.policy.num_outputs: must be 1; got 101 (int)"),
    ("rl.CategoricalActorCritic(SPACE, BOX, v_min=0.0, v_max=0.0)", ParamsError, "CategoricalActorCritic.v_max: must be greater than v_min (0.0); got 0.0 (float)"),
    ("rl.CategoricalActorCritic(SPACE, BOX, num_atoms=1)", ParamsError, "CategoricalActorCritic.num_atoms: must be an integer of at least 2; got 1 (int)"),
    ("rl.CategoricalActorCritic(SPACE, BOX, limit_returns=1)", ParamsError, f"CategoricalActorCritic.limit_returns: {FLAG}; got 1 (int)"),
    *((f"rl.SquashedActorCritic(SPACE, BOX, {options})", ParamsError, f"SquashedActorCritic.{text}") for options, text in (
        ("use_sde=True, smooth_log_std=True", "smooth_log_std: must be False with use_sde; got True (bool)"),
        ("smooth_log_std=1", f"smooth_log_std: {FLAG}; got 1 (int)"),
        *((f"{given}, log_std_init=0.0", "log_std_init: must be None with smooth_log_std, or with a norm of NetParams that begins with 'unit'; got 0.0 (float)")
          for given in ("smooth_log_std=True", "net=rl.NetParams(norm='unit_batch')")),
    )),
    ("rl.NetParams(norm='unit_lerp', hidden_sizes=(64, 32))", ParamsError, "NetParams.hidden_sizes: must be one width, once for each block, with norm='unit_lerp'; got (64, 32) (tuple)"),
    ("rl.CrossQParams(tau=0.1)", ParamsError, "CrossQParams.tau: must be left out; got 0.1 (float). CrossQ has no target network."),
    ("rl.CalQL(rl.SquashedActorCritic(SPACE, BOX, normalize_reward=True))", ParamsError, "CalQL.policy.normalize_reward: must be False: returns of the data are in the rewards' own scale; got True (bool)"),
    ("rl.FlowActorCritic(SPACE, BOX, chunk_length=0)", ParamsError, f"FlowActorCritic.chunk_length: {COUNT}; got 0 (int)"),
    ("rl.FQL(rl.FlowActorCritic(SPACE, BOX, chunk_length=2))", ParamsError, "FQLParams.chunk_length: must be 2, as in the policy; got 1 (int). Write FlowActorCritic(..., chunk_length=1)."),
    ("rl.FQLParams(chunk_length=4, n_step=3)", ParamsError, "FQLParams.n_step: must be left out; got 3 (int). With chunks, targets look chunk_length steps ahead."),
    ("rl.PPOParams(adam_betas=(0.9, 1.0))", ParamsError, "PPOParams.adam_betas: must be two numbers in [0, 1); got (0.9, 1.0) (tuple)"),
    *fields("rl.DQN(rl.QNetwork(SPACE, DISCRETE)).update_from(buffer, {})", "update_from", ParamsError,
        ("0", f"batch_size: {COUNT}; got 0 "), ("'32'", f"batch_size: {COUNT}; got '32' "), ("4, -1", f"num_steps: {NOT_NEGATIVE}; got -1 "),
    ),
    *((f"rl.load_policy('ppo.safetensors', classes={value})", ParamsError, "load.classes: must be classes and functions, or a dict from their names; ") for value in ("3", "'OwnPolicy'", "Walk")),
    *((f"{call}('ppo.safetensors', strict={value})", ParamsError, f"{name}.strict: {FLAG}; got ") for value in ("0", "None", "'yes'") for call, name in (
        ("ppo.load", "PPO.load"), ("policy.load", "ActorCritic.load"), ("rl.load", "load"), ("rl.load_policy", "load_policy"),
    )),
    *fields("rl.UpdateParams({})", "UpdateParams", ParamsError,
        ("grad_norm_type=0.5", "grad_norm_type: must be a number of at least 1, or infinity; got 0.5 (float)"),
        ("max_grad_norm=2.0, max_grad_value=1.0", "max_grad_value: must be None beside max_grad_norm (2.0); got 1.0 (float). Choose one of the two limits."),
        ("max_grad_value=1.0, balance_grad_norms=True", "balance_grad_norms: must be False beside max_grad_value (1.0); got True (bool). It shares out a limit of the norm."),
    ),
    *fields("rl.PrecisionParams({})", "PrecisionParams", ParamsError,
        ("loss_scale_growth=0.5", "loss_scale_growth: must be a number of at least 1; got 0.5 (float)"),
        ("loss_scale_backoff=1.0", "loss_scale_backoff: must be a number in (0, 1); got 1.0 (float)"),
        ("initial_loss_scale=4.0, min_loss_scale=8.0", "initial_loss_scale: must be at least min_loss_scale (8.0); got 4.0 (float). A run would end at once"),
        *((f"amp='{amp}', weights='float64'", 'amp: must be None with weights="float64"; got ') for amp in ("bf16", "fp16")),
    ),
    *((f"{owner}.set_weight_dtype({value})", ParamsError, f"{name}.set_weight_dtype: must be torch.float32 or torch.float64; got ")
      for owner, name in (("ppo", "PPO"), ("policy", "ActorCritic")) for value in ("'float16'", "torch.float16", "64", "None", "[torch.float64]")),
    # envs
    *fields("rl.make_vec(**{{'env': 'CartPole-v1', 'num_envs': 2}} | dict({}))", "make_vec", ParamsError,
        ("env=3", f"env: {NO_ENV}; got 3 (int)"), ("env=None", f"env: {NO_ENV}; got None"), ("env=list", f"env: {NO_ENV}; got <class 'list'>"),
        ("num_envs=0", f"num_envs: {COUNT}; got 0 (int)"), ("seed=-1", f"seed: {NOT_NEGATIVE} or None; got -1 (int)"),
        ("backend='snyc'", "backend: must be one of 'auto', ~, 'tensor'; got 'snyc' (str). Did you mean 'sync'?"),
        ("backend=None", "backend: must be one of ~; got None (NoneType)"),
        ("wrappers=[3]", "wrappers: must be a sequence of callables ~; got [3] (list)"),
        ("wrappers='x'", "wrappers: must be a sequence of callables"), ("backend=[]", "backend: must be one of ~; got [] (list)"),
        ("wrappers=gym.wrappers.FlattenObservation", "wrappers: must be a sequence of callables"),
        ("env=Walk, g=1", "env_kwargs: only a gymnasium id takes arguments; got {'g': 1} (dict)"),
        *((f"env=Walk, backend='{backend}'", f"backend: '{backend}' needs a gymnasium id; ~'sync'") for backend in ("native", "envpool")),
        *((f"backend='{backend}', wrappers=[gym.wrappers.FlattenObservation]", f"wrappers: '{backend}' has no single envs to wrap") for backend in ("envpool", "native", "tensor")),
        ("env='Pendulum-v1', backend='native'", "backend: 'native' needs an env with a vector implementation of its own; ~Pendulum-v1 has none"),
        *((f"backend='tensor', {given}", text) for given, text in (
            ("sutton_barto_reward=True", "env_kwargs: 'tensor' takes no arguments of an env; got {'sutton"),
            ("env='Taxi-v3'", "env: must be an env with rules as functions of tensors if the backend"), ("env=Walk", f"env: {NO_ENV}; got <class"),
        )),
        ("device='cpu', backend='sync'", "device: only backend='tensor' can honour it; got 'cpu' (str)"),
        *((f"num_envs=8, backend='{backend}', {name}={value}", f"{name}: only backend='workers' can honour it; got {value} ~. The backend is '{backend}'")
          for backend in ("auto", "sync", "native", "envpool", "tensor")
          for name, value in (("num_workers", "2"), ("step_timeout", "1.0"), ("on_env_error", "'restart'"), ("max_restarts", "4"), ("start_method", "'fork'"))),
        *((f"env=Walk, backend='workers', {name}={value}", f"{name}: {rule}; got {value}") for name, value, rule in (
            ("num_workers", "0", "must be a positive integer or None"), ("step_timeout", "0.0", "must be a positive finite number or None"),
            ("on_env_error", "'ignore'", "must be one of 'raise', 'restart'"), ("max_restarts", "-1", NOT_NEGATIVE),
            ("start_method", "'clone'", "must be one of 'forkserver', 'spawn', 'fork' or None"),
        )),
    ),
    ("rl.make_vec(lambda: 3, 2, backend='tensor')", ParamsError, "TensorVectorEnv.env: must be a TensorEnv; got 3 (int)"),
    ("rl.make_vec('CartPole-v1', 2, backend='tensor', device='cudo')", ParamsError, f"TensorVectorEnv.device: {DEVICE}; got 'cudo' (str)"),
    *fields("rl.TensorVectorEnv({})", "TensorVectorEnv", ParamsError,
        ("Count, 2", "env: must be a TensorEnv; got <class"), ("Count(), 0", f"num_envs: {COUNT}; got 0 (int)"),
        ("Count(), 2, seed=-1", f"seed: {NOT_NEGATIVE}"), ("Count(), 2, 'cudo'", f"device: {DEVICE}; got 'cudo' (str)"),
        ("type('Bare', (rl.TensorEnv,), {'first_state': None, 'transition': None})(), 2", "env: must have observation_space, action_space, num_first_uniforms; got <"),
    ),
    ("rl.TensorVectorEnv(type('Wrong', (Count,), {'max_episode_steps': 0})(), 2)", ParamsError, "Wrong.max_episode_steps: must be a positive integer or None; got 0 (int)"),
    ("rl.TensorVectorEnv(Count(), 2).reset(options={'low': 1})", ParamsError, "TensorVectorEnv.reset.options: envs of tensors take none; got {'low': 1} (dict)"),
    ("rl.TensorVectorEnv(Count(), 2).reset(seed='a')", ParamsError, "TensorVectorEnv.seed.seed: must be an integer"),
    *((f"rl.TensorVectorEnv(Count(), 3).step({actions})", SpaceError, f"TensorVectorEnv.step: expected a tensor (3,), got {found}") for actions, found in (
        ("torch.zeros(3, 1, dtype=torch.int64)", "int64 (3, 1)"), ("torch.zeros(2, dtype=torch.int64)", "int64 (2,)"), ("[0, 0, 0]", "list [0, 0, 0]"),
    )),
    *((f"rl.frame_skip({given})", ParamsError, "frame_skip.envs: must be a gymnasium VectorEnv; got ") for given in ("'CartPole-v1'", "None", "Walk()")),
    ("rl.ActionMask(Turn())", SpaceError, "ActionMask.env.action_space: must be Discrete, MultiDiscrete or MultiBinary; got Box"),
    ("rl.ActionMask(Walk()).reset()", EnvError, 'ActionMask: ~Walk~ has neither info["action_mask"] nor a method'),
    *((f"rl.make_vec(walk('Drawn', render_mode={mode}), 1, wrappers=[rl.PixelObservation])", ParamsError, f'PixelObservation.env: must be made with render_mode="rgb_array"; got {mode} ({kind}). Write') for mode, kind in (("None", "NoneType"), ("'human'", "str"))),
    *((f"rl.make_vec({given}, num_envs=2, backend='workers')", EnvError, "env 0: the factory cannot travel to a worker process (~lambda~). Define it, and its wrappers, as functions or classes at the top level of a module, or use start_method='fork' or backend='sync'.")
      for given in ("lambda: Walk()", "'Pendulum-v1', wrappers=[lambda env: env]")),
    # collectors
    *fields("rl.InferenceParams({})", "InferenceParams", ParamsError,
        ("min_batch_size=0", "min_batch_size: must be ~; got 0 (int)"), ("max_batch_size=0", "max_batch_size: must be ~; got 0 (int)"),
        ("max_wait_time=-1", "max_wait_time: must be ~; got -1 (int)"),
        ("min_batch_size=4, max_batch_size=3", "max_batch_size: must be at least min_batch_size=4; got 3 (int)"),
    ),
    *fields("rl.Collector(policy, envs).collect({})", "Collector.collect", ParamsError,
        *((f"{name}={value}", f"{name}: {COUNT}; got {value}") for name in ("num_steps", "num_episodes") for value in ("0", "-1", "2.5", "True")),
    ),
    ("rl.Collector(policy, envs).collect(num_steps=3, num_episodes=3)", ParamsError, "Collector.collect: exactly one of num_steps and num_episodes must be given; got num_ste"),
    ("rl.Collector('policy', envs)", ParamsError, "Collector.policy: must be a Policy; got 'policy'"),
    ("rl.Collector(policy, envs, 3)", ParamsError, "Collector.buffer: must be a ReplayBuffer or RolloutBuffer; got 3"),
    ("rl.Collector(policy, envs, rl.ReplayBuffer(10, SPACE, BOX, num_envs=2))", SpaceError, "Collector.buffer.action_space: expected ~, found"),
    *((f"rl.Collector(rl.SquashedActorCritic(SPACE, {one}), rl.make_vec(walk('Wide', action_space=WIDE), 2), rl.ReplayBuffer(10, SPACE, {other}, num_envs=2))", SpaceError, f"Collector.{what}.action_space: expected Box(-2~, found Box(-1~lies in")
      for what, one, other in (("policy", "BOX", "WIDE"), ("buffer", "WIDE", "BOX"))),
    ("rl.Collector(rl.ActorCritic(BOX, DISCRETE), envs)", SpaceError, "Collector.policy.observation_space: expected ~, found ~Build the policy for"),
    ("rl.Collector(policy, envs).rollout()", ParamsError, "Collector.buffer: must be given to look at what was stored"),
    *fields("rl.AsyncCollector(**{{'policy': policy, 'make_envs': walks}} | dict({}))", "AsyncCollector", ParamsError, *(
        (given, f"{given.partition('=')[0]}: must be ") for given in (
            "num_workers=0", "max_ahead=-1", "step_timeout=0", "start_method='thread'", "sync_every=0", "modules={'policy': 3}",
            "modules={3: torch.nn.Linear(1, 1)}", "make_envs=''", "exploration=-1", "policy=None",
        )
    )),
    *fields("rl.BatchedCollector(policy, envs, {})", "BatchedCollector", ParamsError,
        ("min_trajectory_length=0", f"min_trajectory_length: {COUNT}; got 0"), ("max_trajectory_length=0", f"max_trajectory_length: {COUNT} or None; got 0"),
        *((f"inference={value}", "inference: must be a InferenceParams or None; got ") for value in ("3", "{'min_batch_size': 3}", "rl.InferenceParams")),
        ("min_trajectory_length=5, max_trajectory_length=4", "max_trajectory_length: must be at least min_trajectory_length=5; got 4 (int)"),
    ),
    *fields("rl.RayCollector(policy, walks, {})", "RayCollector", ParamsError,
        ("num_actors=0", f"num_actors: {COUNT}; got 0"), ("max_version_lag=-1", f"max_version_lag: {NOT_NEGATIVE} or None; got -1"),
        ("num_cpus=-1.0", "num_cpus: must be a non-negative finite number; got -1.0"), ("num_gpus='one'", "num_gpus: must be a non-negative finite number; got 'one'"),
        ("call_timeout=0.0", "call_timeout: must be a positive finite number or None; got 0.0"), ("max_restarts=1.5", f"max_restarts: {NOT_NEGATIVE}; got 1.5"),
        ("max_ahead=-1", f"max_ahead: {NOT_NEGATIVE} or None; got -1"),
    ),
    ("rl.Collector(policy, envs, device='moon')", ParamsError, f"Collector.device: {DEVICE}; got 'moon'"),
    ("rl.Collector(policy, envs, sync_every=rl.Every(5, 'training_step'))", ParamsError, "Collector.sync_every: needs a device; got Every"),
    ("rl.Collector(policy, envs, max_episode_steps=2.5)", ParamsError, f"Collector.max_episode_steps: {COUNT} or None; got 2.5"),
    # buffers
    *fields("replay({})", "ReplayBuffer", ParamsError,
        ("capacity=0", f"capacity: {COUNT}; got 0 (int)"), ("num_envs=-1", f"num_envs: {COUNT}; got -1 (int)"),
        ("num_envs=11", "capacity: must be at least num_envs=11; got 10 (int)"), ("seed=-1", f"seed: {NOT_NEGATIVE} or None; got -1 (int)"),
        ("device='nowhere'", f"device: {DEVICE}; got 'nowhere' (str)"), ("extra=['x']", "extra: must be a mapping from names to (shape, dtype); got ['x'] (list)"),
        ("extra={'x': 3}", f"extra['x']: {EXTRA}"), ("extra={'x': ((-1,), torch.float32)}", f"extra['x']: {EXTRA}"),
        ("extra={'x': ((1,), torch.complex64)}", f"extra['x']: {EXTRA}"),
        ("frame_stack=0", f"frame_stack: {COUNT}; got 0 (int)"),
        ("observation_space=STACKS, frame_stack=3, num_envs=4", "capacity: must be at least num_envs=4 times frame_stack=3; got 10 ("),
    ),
    ("replay(observation_space=gym.spaces.Text(5))", SpaceError, "unsupported space Text"),
    ("replay(action_space=gym.spaces.Dict(a=DISCRETE))", SpaceError, "ReplayBuffer.action_space: must be a Box, Discrete, MultiDiscrete or MultiBinary; got Dict"),
    *((f"replay(observation_space={space}, frame_stack={stack})", SpaceError, f"ReplayBuffer.observation_space: must be a Box with {stack} frames along its first axis; got {found}") for space, stack, found in (
        ("STACKS", 2, "Box"), ("DISCRETE", 2, "Discrete(2) (Discrete)"), ("gym.spaces.Dict(a=STACKS)", 3, "Dict"),
    )),
    *fields("filled().sample(**{{'batch_size': 2}} | dict({}))", "ReplayBuffer.sample", ReplayBufferError,
        ("batch_size=0", f"batch_size: {COUNT}; got 0 (int)"), ("batch_size=10**15", "batch_size: needs ~ GB of memory on cpu"),
        ("num_batches=0", "num_batches: must be a positive integer or None; got 0 (int)"), ("num_batches=10**15", "batch_size: needs ~ GB of memory on cpu"),
        ("n_step=0", f"n_step: {COUNT}; got 0 (int)"), ("gamma=1.01", f"gamma: {LIMIT}; got 1.01 (float)"), ("gamma=float('nan')", f"gamma: {LIMIT}; got nan (float)"),
    ),
    *fields("filled().sample_sequences(**{{'batch_size': 2, 'length': 2}} | dict({}))", "ReplayBuffer.sample_sequences", ReplayBufferError,
        ("length=7, burn_in=5", "length: must with burn_in=5 be at most the 10 transitions that each env keep"), ("length=0", f"length: {COUNT}; got 0 (int)"),
        ("burn_in=-1", f"burn_in: {NOT_NEGATIVE}; got -1 (int)"), ("batch_size=0", f"batch_size: {COUNT}; got 0 (int)"),
        ("batch_size=10**15", "batch_size: needs ~ GB of memory on cpu"),
    ),
    ("replay().sample_sequences(2, 2)", ReplayBufferError, "ReplayBuffer.sample_sequences: the buffer is empty"),
    *fields("rl.RolloutBuffer(**{{'num_steps': 4, 'num_envs': 2, 'observation_space': SPACE, 'action_space': DISCRETE}} | dict({}))", "RolloutBuffer", ParamsError,
        ("num_steps=0", f"num_steps: {COUNT}; got 0 (int)"), ("num_envs=1.0", f"num_envs: {COUNT}; got 1.0 (float). Write 1."),
        ("device=3.5", f"device: {DEVICE}; got 3.5 (float)"), ("extra=3", "extra: must be a mapping from names to (shape, dtype); got 3 (int)"),
    ),
    ("rl.RolloutBuffer(4, 2, SPACE, gym.spaces.Tuple([DISCRETE]))", SpaceError, "RolloutBuffer.action_space: must be a Box"),
    *fields("replay(rl.PrioritizedReplayBuffer, {})", "PrioritizedReplayBuffer", ParamsError,
        ("alpha=1.1", f"alpha: {LIMIT}; got 1.1 (float)"), ("beta=-1", f"beta: {LIMIT} or a callable of progress in [0, 1]"),
        ("capacity=0", f"capacity: {COUNT}; got 0 (int)"), ("num_envs=19", "capacity: must be at least num_envs=19; got 10 (int)"),
    ),
    *fields("replay(rl.HindsightReplayBuffer, **{{'observation_space': GOALS, 'compute_reward': lambda achieved, desired, info: 0}} | dict({}))", "HindsightReplayBuffer", ParamsError,
        ("num_goals=0", f"num_goals: {COUNT}; got 0 (int)"), ("strategy='past'", "strategy: must be one of 'future', 'final', 'episode'; got 'past' (str)"),
        ("compute_reward=3", "compute_reward: must be a callable (achieved_goal, desired_goal, info)"), ("compute_reward=lambda achieved: 0", "compute_reward: must be a callable"),
        ("compute_terminated=3", "compute_terminated: must be a callable"), ("capacity=0", f"capacity: {COUNT}; got 0 (int)"),
    ),
    ("replay(rl.HindsightReplayBuffer, observation_space=GOALS, compute_reward=lambda achieved, desired, info: 0, frame_stack=2)", SpaceError, "HindsightReplayBuffer.observation_space: must be a Box with 2 frames"),
    *((f"replay(rl.HindsightReplayBuffer, observation_space={space}, compute_reward=lambda achieved, desired, info: 0)", SpaceError, "HindsightReplayBuffer.observation_space: must be a Dict with the leaves 'achieved_goal' and 'desired_goal' of one shape") for space in (
        "BOX", "gym.spaces.Dict(observation=BOX, achieved_goal=BOX)", *(f"gym.spaces.Dict(achieved_goal={one}, desired_goal={other})" for one, other in (("BOX", "SPACE"), ("BOX", "PARTS"), ("PARTS", "PARTS"))),
    )),
    *((f"rl.HindsightReplayBuffer.for_env({env}, 10)", ParamsError, f"HindsightReplayBuffer.for_env.env: must be a single gymnasium.Env with a `compute_reward`; got {found}") for env, found in (
        ("'CartPole-v1'", "'CartPole-v1' (str)"), ("envs", "SyncVectorEnv("), ("gym.make('CartPole-v1')", "<TimeLimit"),
    )),
    *((f"replay(rl.PrioritizedReplayBuffer).update_priorities(torch.zeros(2, dtype=torch.int64), {error})", ReplayBufferError, f"PrioritizedReplayBuffer.update_priorities.td_error: must be one error per transition, of shape (2,); got {found}. An algorithm") for error, found in (
        ("None", "None"), ("torch.zeros(3)", "shape (3,)"), ("torch.zeros(1, 2)", "shape (1, 2)"),
    )),
    *((f"filled().describe({value})", ParamsError, "ReplayBuffer.describe.reference_scores: must be two finite numbers, the lower one first or None; got ") for value in ("(1, 1)", "(2, 1)", "(1,)", "3.0", "'ab'", "(0, np.inf)", "(True, 2)")),
    *((f"replay({given}).load_state_dict(filled().state_dict())", ReplayBufferError, f"ReplayBuffer.load_state_dict: {text}") for given, text in (
        ("capacity=24", "capacity: expected 24, found 10"), ("num_envs=2", "num_envs: expected 2, found 1"), ("action_space=gym.spaces.Discrete(3)", "action_space: expected Discrete(3), found Disc"),
        ("extra={'x': ((), torch.bool)}", "extra: expected {'x': ((), torch.bool)}, foun"),
    )),
    *((f"replay(observation_space=TREE).add({obs}, [0], [0.0], {obs}, [False], [False])", ReplayBufferError, f"ReplayBuffer.obs{text}") for obs, text in (
        ("np.zeros((1, 3))", ": expected a dict with the keys ['a', 'b'], got a ndarray"), ("{'a': np.zeros((1, 3))}", ": expected a dict with the keys ['a', 'b'], got the keys ['a']"),
        ("{'a': np.zeros((1, 3)), 'b': np.zeros((1, 3))}", '["b"]: expected a tuple of 2 parts, got a ndarray'), ("{'a': np.zeros((1, 3)), 'b': (np.zeros(1),)}", '["b"]: expected a tuple of 2 parts, got 1 parts'),
        ("{'a': np.zeros((1, 3)), 'b': (np.zeros(1, int), np.zeros((2, 3)))}", '["b"][1]: expected float32 of shape (1, 3), got float64 of'),
    )),
    *((f"buffer.extend({other})", error, f"ReplayBuffer.extend{text}") for other, error, text in (
        ("3", ReplayBufferError, ".other: must be another buffer; got 3"), ("buffer", ReplayBufferError, ".other: must be another buffer"),
        ("replay(action_space=gym.spaces.Discrete(6))", SpaceError, ": action_space: expected Discrete(2), found Discrete(6)"),
        ("replay(extra={'x': ((), torch.bool)})", SpaceError, ": extra: expected {}, found {'x': ((), torch.b"),
    )),
    *((f"rl.MixedBuffer({parts})", error, f"MixedBuffer.{text}") for parts, error, text in (
        ("3, filled()", ReplayBufferError, "online: must be a ReplayBuffer; got"), ("buffer, None", ReplayBufferError, "offline: must be a ReplayBuffer; got"),
        ("buffer, buffer", ReplayBufferError, "offline: must be another buffer than the online one; got"), ("buffer, replay()", ReplayBufferError, "offline: must hold transitions; got"),
        ("replay(action_space=gym.spaces.Discrete(7)), filled()", SpaceError, "offline: action_space: expected Discrete"),
        ("replay(), filled(), 2", ParamsError, f"offline_share: {LIMIT}; got 2"),
    )),
    ("rl.MixedBuffer(filled(), filled()).sample(0)", ReplayBufferError, f"MixedBuffer.sample.batch_size: {COUNT}; got 0"),
    ("rl.MixedBuffer(filled(), filled()).sample(2, gamma=2.0)", ReplayBufferError, "ReplayBuffer.sample.gamma: must be a number in"),
    ("rl.MixedBuffer(filled(), filled()).sample_sequences(0, 2)", ReplayBufferError, f"MixedBuffer.sample_sequences.batch_size: {COUNT}; got 0"),
    ("rl.MixedBuffer(filled(), filled()).sample_sequences(2, 11)", ReplayBufferError, "ReplayBuffer.sample_sequences.length: must with burn_in=0 be at most"),
    *((f"rl.datasets.{call}", error, text) for call, error, text in (
        ("best_episodes(filled())", ParamsError, "best_episodes.share: must be given, or num_episodes, but"),
        ("best_episodes(filled(), share=0.5, num_episodes=2)", ParamsError, "best_episodes.share: must b"),
        ("best_episodes(filled(), num_episodes=0)", ParamsError, "best_episodes.num_episodes: must be a"),
        ("best_episodes(filled(), share=0.0)", ReplayBufferError, "best_episodes.buffer: must hold an ep"),
        ("best_episodes([], share=0.5)", ReplayBufferError, "best_episodes.buffer: must be a Replay"),
        ("episodes_with_return(filled(), at_least=25)", ReplayBufferError, "episodes_with_return.buffer:"),
        ("episodes_with_return(filled(), at_least=np.nan)", ParamsError, "episodes_with_return.at_least:"),
        ("split_episodes(filled(), 2)", ParamsError, f"split_episodes.share: {LIMIT};"), ("split_episodes(filled(), 0.5, seed=-1)", ParamsError, f"split_episodes.seed: {NOT_NEGATIVE}"),
        ("split_episodes(replay(), 0.5)", ReplayBufferError, "split_episodes.buffer: must h"),
    )),
    *((f"rl.ReplayBuffer.from_arrays(**arrays | dict({given}))", error, f"ReplayBuffer.from_arrays: {text}") for given, error, text in (
        ("observations=np.zeros((0, 3))", ReplayBufferError, "observations: must hold at least one row; got 0"),
        ("rewards=np.zeros(2)", ReplayBufferError, "rewards: expected 4 rows, as observations have, got 2"),
        ("terminations=np.zeros(5)", ReplayBufferError, "terminations: expected 4 rows, as observations have, got 5"),
        ("truncations=[0, 2, 0, 0]", ReplayBufferError, "truncations: must be True or False; row 1 is 2"),
        ("rewards=[0, 1, np.inf, 0]", ReplayBufferError, "rewards: must be finite; row 2 is inf"),
        ("rewards=[0, 1, 1e39, 0]", ReplayBufferError, "rewards: must be finite; row 2 is 1e+39"),
        ("observations=[[0, 0, 0], [0, 0, np.nan]] * 2", ReplayBufferError, "observations: must be finite; row 1 is [0.0, 0.0, nan]"),
        ("next_observations=[[0, 0, 0], [0, 0, np.nan]] * 2", ReplayBufferError, "next_observations: must be finite; row 1 is [0.0, 0.0, nan]"),
        ("rewards=['a', 'b', 'c', 'd']", ReplayBufferError, "rewards: expected an array or tensor of numbers, got list"),
        ("observations=np.zeros((4, 4))", SpaceError, "observations: expected float32 of shape (M, 3), got float64 o"),
        ("rewards=1.0", SpaceError, "rewards: expected float32 of shape (M,), got float64 of shape ()"),
        ("actions=np.zeros((4, 1), int), action_space=DISCRETE", SpaceError, "actions: expected int64 of shape (M,), got int64 of shape (4, 1)"),
        ("actions=np.zeros(4), action_space=DISCRETE", SpaceError, "actions: expected int64 of shape (M,), got float64 of shape (4,)"),
        ("actions=[0, 5, 1, 0], action_space=DISCRETE", SpaceError, "actions: must lie in Discrete(2); row 1 is 5"),
        ("actions=[[0.5], [1.5], [0], [0]]", SpaceError, "actions: must lie in Box(-1.0, 1"),
        ("observations=[0, 1, 5, 0], observation_space=DISCRETE", SpaceError, "observations: must lie in Discrete(2);"),
        ("observations=[[0], [256], [0], [0]], observation_space=gym.spaces.Box(0, 255, (1,), np.uint8)", SpaceError, "observations: must lie"),
        ("observations={'a': [0]}, observation_space=PARTS", ReplayBufferError, "observations: expected a dict with the keys ['"),
        ("truncations=[1, 1, 1, 1], terminations=np.zeros(4, bool)", ReplayBufferError, "none of the 4 transitions has a known successor. Pass next_obs"),
    )),
    # trainers
    ("ppo.run_training(rl.TrainerParams())", ArgumentError, "TrainerParams: is abstract. Build one of its subclasses: O"),
    ("ppo.run_training(rl.PPOParams())", ParamsError, "PPO.run_training.params: must be trainer params~Hyperparameters belong to the algorithm."),
    *((f"{trainer}Trainer({algorithm}, {params})", ParamsError, f"{trainer.removeprefix('rl.')}Trainer.{text}") for trainer, algorithm, params, text in (
        ("rl.OffPolicy", "ppo", "off_policy()", "algorithm: must be of class OffPolicyAlgorithm~ Use OnPolicyTrainer"),
        ("rl.OnPolicy", "rl.DQN(rl.QNetwork.for_envs(envs))", "trainer().params", "algorithm: must be of class OnPolicyAlgorithm~ Use OffPolicyTrainer"),
        ("rl.OffPolicy", "rl.DQN(rl.QNetwork.for_envs(envs))", "trainer().params", "params: ~ Write OffPolicyTrainer(algorithm, OffP"),
    )),
    *((f"trainer().{ask}(3)", ParamsError, f"OnPolicyTrainer.{ask}.path: must be a path; got 3 (int)") for ask in ("save", "restore")),
    ("rl.OnPolicyTrainer(rl.IMPALA(policy), rl.OnPolicyTrainerParams(training_collector=rl.Collector(policy, envs, rl.RolloutBuffer(8, 2, SPACE, DISCRETE))))", ParamsError,
     "OnPolicyTrainerParams.training_collector: must have the column 'log_prob', which IMPALA reads; got []. Make the buffer with extra={'log_prob': ((), torch.float32)}."),
    ("rl.OfflineTrainerParams(buffer=rl.MixedBuffer(filled(), filled()))", ParamsError, "OfflineTrainerParams.buffer: must be one buffer; got ~ Append one of the two to the other with extend."),
    ("rl.OfflineTrainerParams(buffer=filled()).create_trainer(rl.DQN(rl.QNetwork(BOX, DISCRETE)))", SpaceError, "OfflineTrainerParams.buffer.observation_space: expected ~, found"),
    ("rl.RuntimeParams(cuda_graph=1)", ParamsError, "RuntimeParams.cuda_graph: must be one of 'auto' or True or False; got 1 (int)"),
    *((f"trainer(hooks={hooks})", ParamsError, f"OnPolicyTrainerParams.hooks: {text}") for hooks, text in (
        ("[1]", "must be a list or tuple of TrainerHook objects; got [1] (list)"), ("2 * [rl.TrainerHook()]", "must have different names; got "),
        ("[named('a'), named('a')]", "must have different names; got 'a' (str)"), ("[named(3)]", "TrainerHook.name: must be a text that is not empty or None; got 3 (int)"),
        ("[named('a', every=10)]", "TrainerHook.every: must be an Every or None; got 10 (int)"),
        ("[type('Forgetful', (rl.TrainerHook,), {'state_dict': lambda self: {}})()]", "must override load_state_dict beside state_dict; got ~Forgetful"),
    )),
    # scores
    *((f"scores.{name}({given})", ParamsError, f"{name}.scores: must be finite numbers [..., R, M], runs") for name in ("interquartile_mean", "mean_score", "median_score", "optimality_gap")
      for given in ("[]", "1.0", "[[1.0, 2.0], [3.0]]", "[1.0, np.nan]", "[np.inf]", "'scores'", "[[1.0], [None]]", "np.zeros((0, 2))")),
    ("scores.interquartile_mean([[1.0, 2.0], [3.0]])", ParamsError, "~Each task needs as many runs as the others"),
    *fields("scores.bootstrap_interval(scores.mean_score, [1.0], {})", "bootstrap_interval", ParamsError,
        ("confidence=95", "confidence: must be a number between 0 and 1; got 95"), ("num_resamples=0", f"num_resamples: {COUNT}; got 0"),
    ),
    ("scores.probability_of_improvement([[1.0, 2.0]], [[1.0]])", ParamsError, "~others: must hold the same 2 tasks as scores; got"),
    *((f"scores.rank_test({given})", ParamsError, f"rank_test.{name}: must be runs [R] of one task; got") for name, given in (("scores", "[[1.0, 2.0]], [1.0]"), ("others", "[1.0], [[[1.0]]]"))),
    ("rl.ReplayBuffer.from_arrays(**arrays | dict(action_space=gym.spaces.Text(3)))", SpaceError, "unsupported space Text"),
]  # fmt: skip
