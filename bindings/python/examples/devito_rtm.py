"""Reverse time migration with Devito, its snapshots on an Outcrop tape.

    pip install devito matplotlib
    python devito_rtm.py                # about a minute, then look at devito_rtm.png

Waves are sent into a model of the earth's crust, and what comes back is recorded. Then each record is sent in again, backwards in
time, and correlated with the wave that had caused it: where both meet there is a reflector. That needs every state of the first
wave again, in reverse. Here they go to a tape with little memory, and to a list with as much as it takes: the image must be the
same, bit by bit.
"""

import argparse
import os
import sys
import tempfile
import time

# Kernels in C for one core. On the first run, gcc compiles each of them.
os.environ.setdefault("DEVITO_LANGUAGE", "C")
os.environ.setdefault("DEVITO_LOGGING", "WARNING")

import numpy as np
from devito import Eq, Function, Grid, Operator, SparseTimeFunction, TimeFunction, solve

import outcrop

SPACING_M = 10.0
BORDER = 40
MUTED = 12
STEPS_PER_BLOCK = 8
FREQUENCY_PER_MS = 0.012
FASTEST_M_PER_MS = 4.5


def crust(width, depth):
    """Velocities in km/s, that is m/ms: layers that are bent and broken, and a body of salt."""
    x, z = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, depth), indexing="ij")
    layer = z + 0.04 * np.sin(5 * x) + 0.05 * (x > 0.62)
    velocity = np.full((width, depth), 1.5, np.float32)
    for top, value in ((0.15, 1.8), (0.3, 2.1), (0.45, 2.4), (0.6, 2.8), (0.8, 3.2)):
        velocity[layer > top] = value
    velocity[((x - 0.35) / 0.13) ** 2 + ((z - 0.55) / 0.12) ** 2 < 1] = 4.2
    return velocity


def smooth(velocity, times=60):
    """What is known of the crust before the migration."""
    for _ in range(times):
        around = np.pad(velocity, 1, mode="edge")
        velocity = (around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] + around[1:-1, 1:-1]) / 5
    return velocity.astype(np.float32)


class Waves:
    """The wave equation in a rectangle with sponges around it, forward and backward in time, as Devito's kernels."""

    def __init__(self, width, depth, blocks):
        self.blocks = blocks
        self.shape = (width + 2 * BORDER, depth + 2 * BORDER)
        extent = [(length - 1) * SPACING_M for length in self.shape]
        grid = Grid(shape=self.shape, extent=extent, dtype=np.float32)
        # Stable for the fastest wave that a crust has here.
        self.dt_ms = 0.4 * SPACING_M / FASTEST_M_PER_MS
        self.steps = blocks * STEPS_PER_BLOCK + 2
        self.slowness = Function(name="m", grid=grid, space_order=8)
        self.sponge = Function(name="sponge", grid=grid)
        to_border = [np.minimum(np.arange(length), np.arange(length)[::-1]) for length in self.shape]
        inside = np.minimum.outer(to_border[0], to_border[1])
        self.sponge.data[:] = 0.05 * np.clip(1 - inside / BORDER, 0, 1) ** 2
        self.sent = TimeFunction(name="u", grid=grid, time_order=2, space_order=8)
        self.back = TimeFunction(name="v", grid=grid, time_order=2, space_order=8)
        self.source = SparseTimeFunction(name="source", grid=grid, npoint=1, nt=self.steps)
        self.receivers = SparseTimeFunction(name="receivers", grid=grid, npoint=width // 2, nt=self.steps)
        at = (BORDER + 2 * np.arange(width // 2)) * SPACING_M
        self.receivers.coordinates.data[:] = np.stack([at, np.full_like(at, (BORDER + 2) * SPACING_M)], axis=1)
        self.send, self.reverse = self._kernels()

    def _kernels(self):
        m, u, v = self.slowness, self.sent, self.back
        dt = u.grid.stepping_dim.spacing
        ahead = Eq(u.forward, solve(m * u.dt2 - u.laplace + self.sponge * u.dt, u.forward))
        behind = Eq(v.backward, solve(m * v.dt2 - v.laplace + self.sponge * v.dt.T, v.backward))
        shot = self.source.inject(field=u.forward, expr=self.source * dt**2 / m)
        record = self.receivers.interpolate(expr=u)
        replay = self.receivers.inject(field=v.backward, expr=self.receivers * dt**2 / m)
        return Operator([ahead, shot, record], name="Send"), Operator([behind, replay], name="Reverse")

    def enter(self, velocity):
        self.slowness.data[:] = np.pad(velocity, BORDER, mode="edge") ** -2

    def shoot(self, x_m):
        """A wave that begins at this distance; yields it after each block of steps, and leaves the record in `receivers`."""
        self.sent.data_with_halo[:] = 0
        time_ms = np.arange(self.steps) * self.dt_ms - 1 / FREQUENCY_PER_MS
        power = (np.pi * FREQUENCY_PER_MS * time_ms) ** 2
        self.source.data[:, 0] = (1 - 2 * power) * np.exp(-power)
        self.source.coordinates.data[0] = BORDER * SPACING_M + x_m, (BORDER + 2) * SPACING_M
        for block in range(self.blocks):
            first, last = block * STEPS_PER_BLOCK + 1, (block + 1) * STEPS_PER_BLOCK
            self.send.apply(time_m=first, time_M=last, dt=self.dt_ms)
            yield block, self.sent.data[(last + 1) % 3]

    def replay(self, record):
        """The record backwards in time; yields the wave at the times at which `shoot` did, the last one first."""
        self.back.data_with_halo[:] = 0
        self.receivers.data[:] = record
        for block in reversed(range(self.blocks)):
            time_of_block = (block + 1) * STEPS_PER_BLOCK + 1
            if block < self.blocks - 1:
                self.reverse.apply(time_m=time_of_block + 1, time_M=time_of_block + STEPS_PER_BLOCK, dt=self.dt_ms)
            yield block, self.back.data[time_of_block % 3]


class Image:
    """What the correlations add up to, and how bright each place was lit."""

    def __init__(self, shape):
        self.image = np.zeros(shape, np.float32)
        self.light = np.full(shape, 1e-12, np.float32)

    def add(self, sent, back):
        self.image += sent * back
        self.light += sent * sent

    def picture(self):
        """As people look at it: evenly lit, sharpened, without the sponges and what is close to the sources."""
        image = self.image / (self.light + 0.01 * self.light.max())
        sharp = -4 * image
        for axis in (0, 1):
            sharp += np.roll(image, 1, axis) + np.roll(image, -1, axis)
        sharp = sharp[BORDER:-BORDER, BORDER:-BORDER] * np.linspace(0, 1, sharp.shape[1] - 2 * BORDER) ** 1.5
        sharp[:, :MUTED] = 0
        return sharp


def records(waves, velocity, known, shots_m):
    """What the receivers hear of the crust, without what they would hear of the known part of it."""
    found = []
    for x_m in shots_m:
        heard = []
        for model in (velocity, known):
            waves.enter(model)
            for _ in waves.shoot(x_m):
                pass
            heard.append(waves.receivers.data.copy())
        found.append(heard[0] - heard[1])
    return found


def migrate_on_tape(waves, shots_m, heard, host, directory):
    """The image, with the states of the wave on a tape."""
    image = Image(waves.shape)
    with outcrop.Tape(host=host, dir=directory, order="reverse") as tape:
        for x_m, record in zip(shots_m, heard, strict=True):
            for block, wave in waves.shoot(x_m):
                with tape.lend(block, wave.shape, wave.dtype) as slot:
                    slot[...] = wave
            for block, back in waves.replay(record):
                image.add(tape.take(block), back)
        stats = tape.stats()
    return image, stats


def migrate_in_memory(waves, shots_m, heard):
    """The same, with the states of the wave in a list."""
    image = Image(waves.shape)
    for x_m, record in zip(shots_m, heard, strict=True):
        states = [np.array(wave) for _, wave in waves.shoot(x_m)]
        for block, back in waves.replay(record):
            image.add(states[block], back)
    return image


def plot(path, velocity, picture):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4), constrained_layout=True)
    extent = [0, velocity.shape[0] * SPACING_M / 1000, velocity.shape[1] * SPACING_M / 1000, 0]
    shown = axes[0].imshow(velocity.T, extent=extent, cmap="viridis")
    figure.colorbar(shown, ax=axes[0], label="km/s")
    axes[0].set_title("The crust")
    bound = np.quantile(np.abs(picture), 0.98)
    axes[1].imshow(picture.T, extent=extent, cmap="gray", vmin=-bound, vmax=bound)
    axes[1].set_title("What the migration sees of it")
    for axis in axes:
        axis.set(xlabel="km", ylabel="depth, km")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--width", type=int, default=320, help="points; their distance is 10 m")
    parser.add_argument("--depth", type=int, default=180)
    parser.add_argument("--blocks", type=int, default=240, help="snapshots; there are 8 time steps between them")
    parser.add_argument("--host", default="16 MiB", help="memory for snapshots")
    parser.add_argument("--image", default="devito_rtm.png")
    arguments = parser.parse_args()

    velocity = crust(arguments.width, arguments.depth)
    known = smooth(velocity)
    shots_m = np.linspace(0.05, 0.95, arguments.shots) * arguments.width * SPACING_M
    start = time.perf_counter()

    def say(text):
        print(f"{time.perf_counter() - start:6.1f} s  {text}", flush=True)

    say("Devito writes kernels in C, and gcc compiles them")
    waves = Waves(arguments.width, arguments.depth, arguments.blocks)
    heard = records(waves, velocity, known, shots_m)
    shot_bytes = arguments.blocks * np.prod(waves.shape) * 4
    say(f"recorded {arguments.shots} shots; the states of each take {shot_bytes / 2**20:.0f} MiB")
    waves.enter(known)
    with tempfile.TemporaryDirectory() as directory:
        image, stats = migrate_on_tape(waves, shots_m, heard, arguments.host, directory)
    blocked = stats["save_seconds"] + stats["read_seconds"]
    host, disk = stats["layers"]
    memory, written = (round(count / 2**20) for count in (host["capacity_bytes"], disk["written_bytes"]))
    say(f"migrated with {memory} MiB for states: {written} MiB went to the disk, {blocked:.2f} s were spent waiting")
    reference = migrate_in_memory(waves, shots_m, heard)
    say("migrated with all states in memory")
    plot(arguments.image, velocity, image.picture())
    say(f"look at {arguments.image}")
    if image.image.tobytes() != reference.image.tobytes() or not np.isfinite(image.image).all():
        sys.exit("the images differ")
    print("the images are the same, bit by bit")


if __name__ == "__main__":
    main()
