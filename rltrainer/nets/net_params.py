"""Networks from parts: their encoders, layers and options, as data."""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from torch import nn

from rltrainer.nets.blocks import HiddenLayers, make_layers, make_output
from rltrainer.nets.mlp import MLP, Activation, Dropout, Ensemble, EnsembleMLP, make_activation
from rltrainer.state import registry
from rltrainer.state.params import Params
from rltrainer.validation.field_rules import Rule, Sizes, are_names, is_finite

ACTIVATIONS = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh,
)  # fmt: skip
registry.add_values(*ACTIVATIONS, nn.BatchNorm1d, nn.LayerNorm, nn.RMSNorm)
# Takes the space of a leaf, and returns a module from leaves as stored [B, ...] to features [B, F]; None: the default.
MakeEncoder = Callable[[Any], nn.Module | None]
# Takes an observation space, and returns a module from observations as stored [B, ...] to features [B, F].
MakeObsEncoder = Callable[[Any], nn.Module]


def _is_maker(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module)


def _activation_hint(value: Any) -> str:
    by_name = {each.__name__.lower(): each.__name__ for each in ACTIVATIONS}
    meant = difflib.get_close_matches(value.lower(), by_name, n=1) if isinstance(value, str) else []
    return f"Pass the class torch.nn.{by_name[meant[0]] if meant else 'ReLU'}; in a command its name."


AnyActivation = Annotated[
    Activation, Rule("a callable that makes a module, such as nn.ReLU", callable, _activation_hint)
]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class NetParams(Params):
    """Parts of one network of a policy: encoders, then hidden layers; the policy adds the head.

    A policy takes one as `net`, and may take another one as `critic_net`. None stands for the policy's default. A
    policy of your own builds its networks from them. A field that breaks its rule raises a `ParamsError`.

        encoder = Encoder(observation_space, self.net_params)
        layers = self.net_params.hidden_layers(encoder.out_features)
        self.critic = nn.Sequential(encoder, layers, ValueHead(layers.out_features, 1))
    """

    hidden_sizes: Sizes | None = None
    """Units of each hidden layer."""
    activation: AnyActivation | None = None
    """Makes the activation after each hidden layer, from no argument or from the number of the layer's features."""
    norm: (
        Literal["layer", "batch_renorm", "unit_batch_renorm", "batch", "unit_batch", "unit_lerp", "unit_residual"]
        | None
    ) = None
    """"layer" is layer normalisation (Ba et al. 2016) between each hidden layer and its activation. "batch_renorm" is
    batch renormalisation (Ioffe 2017) of the input, and after each activation: for CrossQ. "batch" is batch
    normalisation of the input, and before each activation. "unit_" before these keeps the weights of each unit at
    length 1, in the output layer too: "unit_batch" is for XQC. "unit_lerp" are blocks that move a unit vector, for
    SimbaV2, "unit_residual" blocks with batch norms that add to their input, for FlashSAC: `hidden_sizes` holds their
    one width once for each block. Only some algorithms train batch norms."""
    dropout: Annotated[float, Rule("a number in [0, 1)", lambda v: is_finite(v) and 0 <= v < 1)] = 0.0
    """Probability with which a unit of a hidden layer is dropped in training, before the norm (as in DroQ, Hiraoka et
    al. 2022). Target networks and policies that act in envs drop none."""
    encoder: Annotated[MakeEncoder, Rule("a callable (space of a leaf) -> module", _is_maker)] | None = None
    """Makes the encoder of a leaf of the observation from its space; the encoder gets the leaf as stored, bytes as
    bytes. F is found by a trial. None, here or returned, stands for convolutions for images, one-hot vectors for
    choices, bytes scaled to [0, 1], and other leaves as they are."""
    obs_encoder: Annotated[MakeObsEncoder, Rule("a callable (observation space) -> module", _is_maker)] | None = None
    """Makes one encoder of the whole observation from its space, to combine parts of a Dict before the hidden layers.
    The encoder gets the observation as stored, a dict for a Dict, with the parts in `keys` and no `action_mask`."""
    keys: Annotated[Sequence[str], Rule("a sequence of names", lambda v: are_names(v) and len(v) > 0)] | None = None
    """The parts of a Dict observation that the network sees; None is all. A critic may see more than the actor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder is not None and self.obs_encoder is not None:
            self.raise_invalid("obs_encoder", "must be None where there is an encoder for each leaf")
        has_blocks, sizes = self.norm in ("unit_lerp", "unit_residual"), self.hidden_sizes
        if has_blocks and sizes is not None and len(set(sizes)) != 1:
            self.raise_invalid("hidden_sizes", f"must be one width, once for each block, with norm={self.norm!r}")
        for name in ("hidden_sizes", "keys"):  # tuples: hashable, and equal to what a file restores
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))

    def with_defaults(self, defaults: "NetParams") -> Self:
        """Return a copy with the missing ones of sizes, activation and encoder from `defaults`."""
        names = ["hidden_sizes", "activation"]
        if self.encoder is None and self.obs_encoder is None:
            names += ["encoder", "obs_encoder"]
        return dataclasses.replace(self, **{n: getattr(defaults, n) for n in names if getattr(self, n) is None})

    def hidden_layers(self, in_features: int) -> MLP | HiddenLayers:
        """Return the hidden layers, from [B, in_features] to [B, out_features]."""
        sizes = self.layer_sizes(in_features)
        if self.norm in (None, "layer"):
            return MLP(sizes, self.after_linear)
        return HiddenLayers(make_layers(self.norm, sizes, self.after_linear), sizes[-1])

    def ensemble(self, num_members: int, in_features: int, num_outputs: int = 1) -> Ensemble:
        """Return E networks of these hidden layers, from [B, in_features] to [E, B], or [E, B, K] for K outputs."""
        norm, sizes = self.norm, self.layer_sizes(in_features)
        if norm in (None, "layer"):
            return EnsembleMLP(num_members, sizes, self.after_linear, num_outputs)

        def layers() -> Iterator[nn.Module]:
            yield from make_layers(norm, sizes, self.after_linear, num_members)
            yield make_output(norm, sizes[-1], num_outputs, num_members)

        return Ensemble(num_members, num_outputs, layers())

    def after_linear(self, num_features: int) -> nn.Module:
        """Return the module after a hidden layer: dropout, norm, activation; a `ParamsError` without an activation."""
        if self.activation is None:
            self.raise_invalid("activation", "must be given to build a network")
        activation = make_activation(self.activation, num_features, "NetParams")
        before: list[nn.Module] = [Dropout(self.dropout)] if self.dropout else []
        before += [nn.LayerNorm(num_features)] if self.norm == "layer" else []
        return nn.Sequential(*before, activation) if before else activation

    def layer_sizes(self, in_features: int) -> tuple[int, ...]:
        """Return the features of the input and of each hidden layer; a `ParamsError` without `hidden_sizes`."""
        if self.hidden_sizes is None:
            self.raise_invalid("hidden_sizes", "must be given to build a network")
        return (in_features, *self.hidden_sizes)
