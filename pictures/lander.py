"""What README opens with: LunarLander before and after training by its recipe.

    python -m pictures.lander                  trains until ten test episodes return 230, some two minutes
    python -m pictures.lander --run FOLDER     films a run that is there

Writes docs/images/lander.gif.
"""

import argparse
import tempfile
from pathlib import Path

import torch

import rltrainer as rl
from pictures.films import beside, filmed, write

IMAGES = Path(__file__).parents[1] / "docs" / "images"
ENV = "LunarLander-v3"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a trained run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        run = args.run or train(Path(temporary))
        rl.seed(1)
        untrained = rl.ActorCritic.for_envs(rl.make_vec(ENV, 1))
        before, milliseconds = filmed(untrained, ENV, every=4, seed=1)
        after, _ = filmed(rl.load(run / "best.safetensors"), ENV, every=4, seed=1)
        write(IMAGES / "lander.gif", beside([before, after]), milliseconds)


def train(folder: Path) -> Path:
    """Train, and return the folder of the run."""
    training = rl.train(ENV, folder=folder, stop_fn=lambda score: score >= 230, max_epochs=50, seed=1)
    return training.folder.path


if __name__ == "__main__":
    main()
