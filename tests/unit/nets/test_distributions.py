"""Action distributions against `torch.distributions`."""

import math
from typing import Any

import pytest
import torch
from torch import distributions as reference

from rltrainer.errors import NonFiniteError
from rltrainer.nets import distributions as module
from rltrainer.nets.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical, SquashedGaussian
from tests.batches import generator

LOGITS = torch.tensor([[0.5, -1.0, 2.0], [3.0, 3.0, -4.0]])
MEAN = torch.tensor([[0.5, -1.0], [0.0, 2.0]], dtype=torch.float64)
LOG_STD = torch.tensor([[0.1, -0.7], [-1.0, 0.3]], dtype=torch.float64)


FLAG_LOGITS = torch.tensor([[0.5, -1.0, 12.0], [30.0, -3.0, 0.0]], dtype=torch.float64)
SECOND = torch.tensor([[1.0, 0.0], [-1.0, 0.5]])


class TwoChoices:
    """Independent choices of torch's, the second one from 1 on."""

    parts = (reference.Categorical(logits=LOGITS), reference.Categorical(logits=SECOND))

    def log_prob(self, action: torch.Tensor) -> torch.Tensor:
        return self.parts[0].log_prob(action[:, 0]) + self.parts[1].log_prob(action[:, 1] - 1)

    def entropy(self) -> torch.Tensor:
        return self.parts[0].entropy() + self.parts[1].entropy()


def squashed_reference() -> reference.Distribution:
    squashed = reference.TransformedDistribution(reference.Normal(MEAN, LOG_STD.exp()), [reference.TanhTransform()])
    return reference.Independent(squashed, 1)


def gaussian_reference(log_std: torch.Tensor) -> reference.Distribution:
    return reference.Independent(reference.Normal(MEAN, log_std.exp()), 1)


ACTION = torch.tensor([[0.3, -4.0], [1.0, 2.0]], dtype=torch.float64)
BOTH = torch.tensor([[2, 1], [0, 2]])
INSIDE = torch.tensor([[[0.3, -0.9]], [[-0.99, 0.0]], [[0.999, 0.5]]], dtype=torch.float64).expand(3, 2, 2)


@pytest.mark.parametrize(("ours", "theirs", "actions", "mode"), [
    (Categorical(LOGITS), reference.Categorical(logits=LOGITS), [[0, 0], [1, 1], [2, 2], [0, 2]], [2, 0]),
    (MultiCategorical([Categorical(LOGITS), Categorical(SECOND, 1)]), TwoChoices(), BOTH[None], BOTH.tolist()),
    (Bernoulli(FLAG_LOGITS), reference.Independent(reference.Bernoulli(logits=FLAG_LOGITS), 1),
     torch.tensor([[[0, 0, 1]], [[1, 1, 1]], [[0, 1, 0]]]).expand(3, 2, 3).double(), [[1, 0, 1], [1, 0, 0]]),
    (DiagonalGaussian(MEAN, LOG_STD), gaussian_reference(LOG_STD), ACTION[None], MEAN.tolist()),
    (DiagonalGaussian(MEAN, LOG_STD[0]), gaussian_reference(LOG_STD[0]), ACTION[None], MEAN.tolist()),
    (SquashedGaussian(MEAN, LOG_STD), squashed_reference(), INSIDE, MEAN.tanh().tolist()),
], ids=["categorical", "multi", "flags", "gaussian", "one spread for all", "squashed"])  # fmt: skip
def test_densities_entropies_and_modes_are_torchs(ours: Any, theirs: Any, actions: Any, mode: Any) -> None:
    for action in torch.as_tensor(actions):
        torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    if not isinstance(ours, SquashedGaussian):
        torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert ours.mode().tolist() == mode


def test_categorical_counts_from_its_start() -> None:
    plain, shifted = Categorical(LOGITS), Categorical(LOGITS, start=-3)
    assert torch.equal(shifted.sample(generator()), plain.sample(generator()) - 3)
    assert torch.equal(shifted.mode(), plain.mode() - 3)
    assert torch.equal(shifted.log_prob(torch.tensor([-3, -1])), plain.log_prob(torch.tensor([0, 2])))


def test_choices_are_drawn_with_their_probabilities_and_apart() -> None:
    probability = torch.tensor([0.1, 0.2, 0.7])
    action = Categorical(probability.log().expand(20_000, 3)).sample(generator())
    assert action.dtype == torch.int64
    # Four standard deviations of a frequency are at most 4 * sqrt(0.25 / 20,000) = 0.014.
    torch.testing.assert_close(action.bincount(minlength=3) / 20_000, probability, atol=0.014, rtol=0)
    action = Categorical(torch.tensor([0.0, -math.inf, 0.0]).expand(1000, 3)).sample(generator())
    assert set(action.tolist()) == {0, 2}, "a choice without probability is never drawn"
    pairs = MultiCategorical([Categorical(torch.zeros(500, 2)), Categorical(torch.zeros(500, 3), start=4)])
    action = pairs.sample(generator())
    assert {tuple(row) for row in action.tolist()} == {(a, b) for a in (0, 1) for b in (4, 5, 6)}


LOG_3 = math.log(3)
FLAGS = torch.tensor([[LOG_3, 0.0], [-LOG_3, LOG_3]])
"""Log-odds of flags that are set with probabilities 3/4 and 1/2, and 1/4 and 3/4."""


def test_flags_are_drawn_with_their_probabilities_and_apart() -> None:
    action = Bernoulli(FLAGS[:1].expand(20_000, 2)).sample(generator())
    assert action.dtype == torch.int8
    assert torch.equal(Bernoulli(FLAGS[:1].expand(20_000, 2)).sample(generator()), action), "the generator's"
    # Four standard deviations of a frequency are at most 0.014.
    torch.testing.assert_close(action.float().mean(0), torch.tensor([0.75, 0.5]), atol=0.014, rtol=0)
    assert (action[:, 0] & action[:, 1]).float().mean().item() == pytest.approx(0.375, abs=0.014)


def test_flags_that_are_certain() -> None:
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    certain = Bernoulli(logits)
    assert certain.sample(generator()).tolist() == [[1, 0]]
    assert certain.log_prob(torch.tensor([[1, 0]])).item() == 0
    assert certain.entropy().item() == 0
    for value in (certain.entropy(), certain.log_prob(torch.tensor([[0, 1]]))):
        (gradient,) = torch.autograd.grad(value.sum(), logits, retain_graph=True)
        assert gradient.isfinite().all()


def test_two_choices_are_a_flag() -> None:
    """A flag with log-odds l is the choice between logits 0 and l."""
    flags = Bernoulli(FLAGS)
    choices = MultiCategorical([Categorical(torch.stack([torch.zeros(2), column], 1)) for column in FLAGS.unbind(1)])
    action = torch.tensor([[1, 0], [0, 0]])
    torch.testing.assert_close(flags.log_prob(action), choices.log_prob(action))
    torch.testing.assert_close(flags.entropy(), choices.entropy())
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0]]).bool()  # not 1; both; not 0; neither, as if both were
    ours, theirs = flags.masked(mask), choices.masked(mask)
    action = torch.tensor([[0, 1], [1, 0]])
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(Bernoulli(-FLAGS).masked(mask)), torch.tensor([0.0, 0.0]))
    assert [row[0] for row in ours.mode().tolist()] == [0, 1]
    assert set(Bernoulli(FLAGS[:1].repeat(200, 1)).masked(mask[:1]).sample(generator())[:, 0].tolist()) == {0}


def test_diagonal_gaussian_samples_with_its_moments() -> None:
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    distribution = DiagonalGaussian(mean.expand(20_000, 2), std.log())
    action = distribution.sample(generator())
    torch.testing.assert_close(action.mean(0), mean, atol=4 * 3 / math.sqrt(20_000), rtol=0)
    torch.testing.assert_close(action.std(0), std, atol=0, rtol=0.02)
    assert [x.shape for x in distribution.parameters] == [(20_000, 2)] * 2, "one spread for all rows is each row's"


def test_squashed_log_prob_of_a_reparameterised_sample_is_that_of_the_action() -> None:
    noise = torch.randn(2, 2, generator=generator(), dtype=torch.float64)
    action, log_prob = SquashedGaussian(MEAN, LOG_STD).rsample(noise)
    torch.testing.assert_close(action, (MEAN + LOG_STD.exp() * noise).tanh())
    torch.testing.assert_close(log_prob, SquashedGaussian(MEAN, LOG_STD).log_prob(action))
    torch.testing.assert_close(log_prob, squashed_reference().log_prob(action))
    mean, log_std = MEAN.float(), LOG_STD.float()
    inputs = MEAN.clone().requires_grad_(), LOG_STD.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda mean, log_std: SquashedGaussian(mean, log_std).rsample(noise), inputs)
    drawn = SquashedGaussian(mean, log_std).rsample(torch.empty(2, 2).normal_(generator=generator()))[0]
    torch.testing.assert_close(SquashedGaussian(mean, log_std).sample(generator()), drawn)


def test_squashed_densities_stay_finite_at_the_bounds() -> None:
    far = SquashedGaussian(torch.full((1, 1), 30.0), torch.zeros(1, 1))
    action, log_prob = far.rsample(torch.zeros(1, 1))
    assert action.item() == 1.0
    # log(1 / (1 - tanh(30)^2)) = 60 - log 4 for so large a u
    assert log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi) + 60 - math.log(4))
    for bound in (-1.0, 1.0):
        assert torch.isfinite(far.log_prob(torch.full((1, 1), bound))).all()
    with pytest.raises(NotImplementedError, match=r"no closed form. Use -rsample\(noise\)\[1\]"):
        far.entropy()


@pytest.mark.parametrize("num_impossible", [1, 2])
def test_entropy_of_a_choice_that_is_impossible_is_finite_and_right(num_impossible: int) -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf], [1.0, -math.inf if num_impossible == 2 else 1.0, -math.inf]])
    logits.requires_grad_()
    entropy = Categorical(logits).entropy()
    # Two equal choices have log 2 nats, a single one has none.
    expected = [math.log(2), math.log(2) if num_impossible == 1 else 0.0]
    assert entropy.tolist() == pytest.approx(expected, abs=1e-6)
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient[0], torch.zeros(3))  # the entropy is at its largest
    both = MultiCategorical([Categorical(logits), Categorical(torch.zeros(2, 4))]).entropy()
    assert both.tolist() == pytest.approx([nats + math.log(4) for nats in expected])


def test_what_was_computed_without_gradients_does_not_stay_so() -> None:
    logits = LOGITS.clone().requires_grad_()
    distribution = MultiCategorical([Categorical(logits), Categorical(logits)])
    with torch.no_grad():
        assert not distribution.entropy().requires_grad
    with torch.inference_mode():
        distribution.log_prob(torch.zeros(2, 2, dtype=torch.int64))
    log_prob = distribution.log_prob(torch.zeros(2, 2, dtype=torch.int64))
    (gradient,) = torch.autograd.grad(log_prob.sum(), logits)
    assert gradient.isfinite().all()
    kept = distribution.parts[0].log_probs
    assert distribution.parts[0].log_probs is kept, "computed once"
    with torch.no_grad():
        assert distribution.parts[0].log_probs is kept


NAN_TEXT = r"^no choice can be made in row 1 of the batch: its logits or action values are \[0.0, nan, 1.0\]\. Look for"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_nan_is_no_preference(dtype: torch.dtype) -> None:
    bad = torch.tensor([[0.0, 2.0, 1.0], [0.0, math.nan, 1.0]], dtype=dtype)
    for distribution in (Categorical(bad), MultiCategorical([Categorical(LOGITS), Categorical(bad)]), Bernoulli(bad)):
        with pytest.raises(NonFiniteError, match=NAN_TEXT):
            distribution.mode()
        with pytest.raises(NonFiniteError, match=r"^no choice can be made in row 1 of the batch"):
            distribution.sample(generator())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")  # by torch 2.14
def test_nan_gets_a_place_that_no_space_has_where_nobody_can_look() -> None:
    """On a device, and in a graph; both would have to wait, or to break."""
    bad = torch.tensor([[0.0, 2.0, 1.0], [0.0, math.nan, 1.0]])
    compiled = torch.compile(module.best_choice, backend="eager", fullgraph=True)
    assert compiled(bad).tolist() == [1, -1]
    flags = torch.compile(lambda logits: Bernoulli(logits).mode(), backend="eager", fullgraph=True)
    assert flags(bad).tolist() == [[0, 1, 1], [0, -1, 1]]
    traced = torch.jit.trace(module.best_choice, torch.tensor([[0.0, 2.0, 1.0]]))
    assert traced(torch.tensor([[0.0, 2.0, 9.0]])).tolist() == [2], "a traced choice is no constant"


def test_infinite_logits_are_preferences() -> None:
    logits = torch.tensor([[0.0, math.inf, 1.0], [-math.inf, -math.inf, 3e38]])
    assert Categorical(logits).mode().tolist() == [1, 2]
    assert Categorical(logits).sample(generator()).tolist() == [1, 2]
    assert Categorical(LOGITS[0]).mode().item() == 2  # without a batch
    assert Categorical(LOGITS[0]).sample(generator()).shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_computed_with_in_float32(dtype: torch.dtype) -> None:
    logits, mean, log_std = LOGITS.to(dtype), MEAN.to(dtype), LOG_STD.to(dtype)
    halves = [Categorical(logits), Bernoulli(logits), DiagonalGaussian(mean, log_std), SquashedGaussian(mean, log_std)]
    logits, mean, log_std = logits.float(), mean.float(), log_std.float()
    floats = [Categorical(logits), Bernoulli(logits), DiagonalGaussian(mean, log_std), SquashedGaussian(mean, log_std)]
    for half, exact in zip(halves, floats, strict=True):
        action = exact.sample(generator())
        assert torch.equal(half.sample(generator()), action)
        assert torch.equal(half.mode(), exact.mode())
        assert torch.equal(half.log_prob(action), exact.log_prob(action))
    assert torch.equal(halves[0].entropy(), floats[0].entropy())


def test_squashed_gradients_stay_finite_at_the_bounds() -> None:
    mean, log_std = torch.tensor([[0.0, 8.0, -8.0]], requires_grad=True), torch.full((1, 3), -3.0, requires_grad=True)
    for bound in (-1.0, 1.0):
        log_prob = SquashedGaussian(mean, log_std).log_prob(torch.full((1, 3), bound))
        assert log_prob.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(log_prob.sum(), (mean, log_std)))
    in_half = SquashedGaussian(mean, log_std).log_prob(torch.ones(1, 3, dtype=torch.bfloat16))
    assert torch.equal(in_half, log_prob)


P, Q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()


def normal(mean: float, std: float) -> DiagonalGaussian:
    return DiagonalGaussian(torch.full((1, 1), mean), torch.full((1,), math.log(std)))


@pytest.mark.parametrize(("one", "other", "divergence"), [
    # 0.5 log(0.5 / 0.9) + 0.5 log(0.5 / 0.1)
    (Categorical(P), Categorical(Q), 0.510826),
    (Categorical(P), Categorical(P + 7), 0.0),
    # What has no probability adds nothing: log(1 / 0.9), also where the other one has none either.
    (Categorical(torch.tensor([[0.0, -math.inf]])), Categorical(Q), 0.105361),
    (Categorical(torch.tensor([[0.0, -math.inf]])), Categorical(torch.tensor([[0.0, -math.inf]])), 0.0),
    (MultiCategorical([Categorical(P)] * 2), MultiCategorical([Categorical(Q)] * 2), 2 * 0.510826),
    (Bernoulli(torch.zeros(1, 2)), Bernoulli(torch.full((1, 2), math.log(9))), 2 * 0.510826),
    # log 2 + (1 + 1) / 8 - 1 / 2 and -log 2 + (4 + 1) / 2 - 1 / 2
    (normal(0.0, 1.0), normal(1.0, 2.0), 0.443147),
    (normal(1.0, 2.0), normal(0.0, 1.0), 1.306853),
    (SquashedGaussian(MEAN[:1, :1], LOG_STD[:1, :1]), SquashedGaussian(MEAN[:1, :1], LOG_STD[:1, :1]), 0.0),
])  # fmt: skip
def test_divergences_by_hand(one: Any, other: Any, divergence: float) -> None:
    assert one.kl(other).tolist() == pytest.approx([divergence], abs=1e-6)


@pytest.mark.parametrize("make", [
    Categorical,
    Bernoulli,
    lambda x: MultiCategorical([Categorical(x[:, :1]), Categorical(x[:, 1:])]),
    lambda x: DiagonalGaussian(x[:, :2], x[:, 2:] * 0.1),
], ids=["categorical", "flags", "multi", "gaussian"])  # fmt: skip
def test_fisher_information_is_the_curvature_of_the_divergence(make: Any) -> None:
    x = torch.tensor([[0.5, -1.0, 2.0, 0.3]], dtype=torch.float64)
    v = torch.tensor([[1.0, 2.0, -0.5, 0.7]], dtype=torch.float64)
    curvature = torch.autograd.functional.hessian(lambda y: make(x).kl(make(y)).sum(), x).view(4, 4)
    x = x.requires_grad_()
    distribution = make(x)
    # J v by differences, J' by autograd: the parameters are linear in x here.
    pushed = [a - b for a, b in zip(make(x + v).parameters, distribution.parameters, strict=True)]
    pulled = torch.autograd.grad(distribution.parameters, x, distribution.fisher([p.detach() for p in pushed]))[0]
    torch.testing.assert_close(pulled.flatten(), curvature @ v.flatten())
