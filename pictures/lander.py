"""What README opens with: LunarLander before and after training by its recipe.

    python -m pictures.lander                  trains until ten test episodes return 230, some two minutes
    python -m pictures.lander --run FOLDER     shows a run that is there

Writes docs/images/lander.gif.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import rltrainer as rl
from pictures.films import beside, filmed, labelled, write

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ENV = "LunarLander-v3"
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a trained run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        run = args.run or train(Path(temporary))
        rl.seed(1)
        untrained = rl.ActorCritic.for_envs(rl.make_vec(ENV, 1))
        before, milliseconds = filmed(untrained, ENV, every=2, seed=SEED)
        after, _ = filmed(rl.load(run / "best.safetensors"), ENV, every=2, seed=SEED)
        frames = beside([labelled(before, "before training"), labelled(after, "after training")])
        # Where a page shows a still, it is the first frame: the end, which the film comes back to after a second.
        write(IMAGES / "lander.gif", [frames[-1], *frames], milliseconds)


def train(folder: Path) -> Path:
    """Train, and return the folder of the run."""
    result = rl.train(ENV, folder=folder, stop_fn=lambda score: score >= 230, max_epochs=50, seed=1)
    return result.folder.path


if __name__ == "__main__":
    main()
