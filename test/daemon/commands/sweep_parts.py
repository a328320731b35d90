"""The pure parts of coalesced-sweep and coalesced-plot: values and names, the median rule, curves, bands, groups of runs. A test
program of unittest, which test_sweep.sh runs."""
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import unittest

SCRIPTS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../../scripts")
sys.path.insert(0, SCRIPTS)
sys.dont_write_bytecode = True


def load(name):
    loader = importlib.machinery.SourceFileLoader(name.replace("-", "_"), os.path.join(SCRIPTS, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


import coalesced_curves as curves

sweep, plot = load("coalesced-sweep"), load("coalesced-plot")


def curve_of(lines, x="episode", y="reward"):
    curve = curves.Curve(x, y)
    curve.take("".join(line if isinstance(line, str) else json.dumps(line, separators=(",", ":")) + "\n"
                       for line in lines).encode())
    return curve


def sloping(slope, last):
    """y = slope * x at each x of 1..last"""
    return curve_of({"episode": x, "reward": slope * x, "timing": {}} for x in range(1, last + 1))


class Grid(unittest.TestCase):
    def names(self, *overs):
        return [sweep.name_of(values) for values in sweep.grid_of(sweep.read_axes(overs, False))]

    def test_the_product_of_all_values(self):
        self.assertEqual(self.names("/optimizer/lr=0.001,1e-2", "/seed=-1..1"),
                         ["lr=0.001,seed=-1", "lr=0.001,seed=0", "lr=0.001,seed=1", "lr=1e-2,seed=-1", "lr=1e-2,seed=0",
                          "lr=1e-2,seed=1"])

    def test_values_are_json(self):
        self.assertEqual(sweep.split_values('[64,64],32,"a,\\"b",{"c":[1,2]},null'),
                         ["[64,64]", "32", '"a,\\"b"', '{"c":[1,2]}', "null"])
        self.assertEqual(self.names('/policy/hidden=[64,64],"a,\\"b"', '/algorithm={"name":"ppo","n_epochs":4}'),
                         ["hidden=64+64,algorithm=name_ppo+n_epochs_4", "hidden=a+_b,algorithm=name_ppo+n_epochs_4"])

    def test_pointers_that_end_alike(self):
        self.assertEqual(self.names("/observers/count=1..3,8", "/server/count=1")[3], "observers.count=8,server.count=1")

    def test_a_text_that_is_almost_a_range_is_a_value(self):
        self.assertEqual(sweep.Axis("/a=1..,..2,1...3,1..2x,7..7", False).values, ["1..", "..2", "1...3", "1..2x", "7"])

    def test_what_is_wrong_is_named(self):
        for overs, words in [
                (["seed=1"], "--over seed=1: expected /POINTER=VALUES"), (["/seed"], "expected /POINTER=VALUES"),
                (["/seed="], "--over /seed: a value is empty"), (["/seed=1,,2"], "--over /seed: a value is empty"),
                (["/seed=1,"], "--over /seed: a value is empty"), (["/seed=5..1"], "--over /seed: 5..1 has no value"),
                (["/seed=1..3,2"], "--over /seed: the value 2 is given twice"),
                (["/seed=1", "/seed=2"], "--over /seed is given twice"),
                (["/seed=1..5000"], "--over /seed: expected at most 4096 values"),
                (["/seed=1..100", "/a=1..100"], "the product has more than 4096 runs"),
                (["/name=a b,a_b"], "one name with a b and with a_b"), (['/name="a",a'], 'one name with "a" and with a'),
                (["/name=" + "x" * 293], "has 298 bytes: expected at most 200")]:
            with self.subTest(overs=overs[0][:20]), self.assertRaises(curves.Failure) as caught:
                self.names(*overs)
            self.assertIn(words, str(caught.exception))

    def test_draws_are_within_the_range_and_repeat(self):
        axes = sweep.read_axes(["/a=log:1e-4..1e-2", "/b=3..5", "/c=x,y"], True)
        drawn = sweep.draw_of(axes, 50)
        self.assertEqual(drawn[:20], sweep.draw_of(axes, 20))
        self.assertEqual(len({sweep.name_of(values) for values in drawn}), 50)
        for values in drawn:
            self.assertTrue(1e-4 <= float(values["/a"]) <= 1e-2 and 3 <= int(values["/b"]) <= 5 and values["/c"] in "xy")
        self.assertEqual(len(sweep.draw_of(sweep.read_axes(["/b=3..5"], True), 10)), 3)

    def test_values_of_sweep_json_are_found_again(self):
        axes = sweep.read_axes(['/a=1e-2,"x",y', "/b=1..2000000", "/c=0.5..2e7"], True)
        for values in sweep.draw_of(axes, 20):
            self.assertEqual({axis.pointer: axis.find(json.loads(json.dumps(sweep.json_of_text(values[axis.pointer]))))
                              for axis in axes}, values)
        self.assertEqual([axes[0].find(0.1), axes[1].find(0), axes[2].find("y")], [None, None, None])


class Rule(unittest.TestCase):
    def test_the_rule(self):
        """The peers' means up to x = 10 are 5.5 * slope; the median of 1, 2 and 4 is 11."""
        peers = [(sloping(1 << i, 20 + i), False) for i in range(3)]
        for slope, last, grace, less, stops in [
                (1.0, 10, 5, False, True), (1.2, 10, 5, False, False), (1.0, 10, 11, False, False), (1.0, 10, 10, False, True),
                (12, 10, 5, True, True), (1.0, 10, 5, True, False), (-5, 30, 5, False, False), (-5, 20, 5, False, True),
                (1.0, 0, 0, False, False)]:
            self.assertEqual(sweep.is_hopeless(sloping(slope, last), grace, peers, less), stops, (slope, last, grace, less))

    def test_which_peers_count(self):
        """Peers that have not got so far do not count, but those that have ended do."""
        peers, curve = [(sloping(10, 8), True)] * 3, sloping(1, 10)
        self.assertFalse(sweep.is_hopeless(curve, 5, [*peers[:2], (peers[2][0], False)], False))
        self.assertTrue(sweep.is_hopeless(curve, 5, peers, False))
        self.assertFalse(sweep.is_hopeless(curve, 5, peers[:2], False))

    def test_the_limit_in_episodes_or_updates(self):
        reinforce = {"kind": "reinforce", "algorithm": {"name": "reinforce"}, "stop": {"episodes": 200}}
        ppo = {"kind": "reinforce", "algorithm": {"name": "ppo", "n_steps": 10}, "observers": {"count": 2, "environments": 4},
               "stop": {"steps": 80000}}
        alone = {**ppo, "observers": {"count": 0, "environments": 4}}  # the agent steps the environments
        server = {"kind": "parameter-server", "stop": {"epochs": 2, "updates": None}}
        self.assertEqual([sweep.limit_of(job, 100) for job in (reinforce, ppo, alone, server)], [200, 1000, 2000, 200])
        self.assertEqual([sweep.limit_of(job, 0) for job in ({**reinforce, "stop": {"episodes": None}}, server)], [None, None])


class Curves(unittest.TestCase):
    def test_numbers_by_name(self):
        curve = curve_of([
            {"episode": 1, "reward": 2, "timing": {"unix_s": 5}},
            {"episode": 2, "reward": 2, "eval": {"std": [1, {"a": 2}], "mean_reward": -35}, "timing": {}},
            {"episode": 3, "x": '}",{', "eval": {"mean_reward": None}, "timing": {}},
            {"episode": 4, "x": '}",{', "eval.mean_reward": 7, "timing": {}},
            {"episode": 5, "eval": {"mean_reward": "12"}, "timing": {}}], y="eval.mean_reward")
        self.assertEqual((curve.xs, curve.ys), ([2, 4], [-35, 7]))
        self.assertTrue(all(isinstance(number, float) for number in curve.newest))
        self.assertEqual(curves.number_of({"a": 10 ** 400}, "a"), float("inf"))

    def test_events_and_wrong_lines_make_no_points(self):
        curve = curve_of([{"event": "start", "episode": 3, "reward": 3, "timing": {}}])
        self.assertEqual(curve.event, "start")
        for block, event in (('{"episode":1,"reward":2,"timing":{}}\n', ""), ('\nnonsense\n{"episode":2,"rew\n', ""),
                             ('{"event":"solved","timing":{}}\n', "solved"), ('{"episode":3,"reward":2,"timing":{}}\n', "")):
            curve.take(block.encode())
            self.assertEqual(curve.event, event)
        self.assertEqual((curve.xs, curve.wrong, curve.first_wrong, curve.lines), ([1, 3], 3, 3, 7))

    def test_epochs_beside_updates(self):
        """An epoch's line has a loss, too, the mean over its updates."""
        lines = [{"update": 1, "loss": 4, "samples": 8, "timing": {}}, {"update": 2, "loss": 2, "samples": 8, "timing": {}},
                 {"epoch": 1, "update": 2, "loss": 3, "accuracy": 0.5, "timing": {}}]
        for x, y, count, last in [("update", "loss", 2, (2, 2)), ("update", "accuracy", 1, (2, 0.5)), ("epoch", "loss", 1, (1, 3)),
                                  ("steps", "loss", 2, (16, 2))]:
            curve = curve_of(lines, x, y)
            self.assertEqual((len(curve.xs), curve.newest), (count, last), (x, y))

    def test_steps_and_seconds(self):
        curve = curve_of([{"episode": 1, "reward": 2, "env_steps": 10, "timing": {}},
                          {"episode": 2, "reward": None, "env_steps": 10, "timing": {}},
                          {"episode": 3, "reward": 4, "env_steps": 10, "timing": {}},
                          {"episode": 3, "reward": 4, "env_steps": 10, "timing": {}}], "steps")
        self.assertEqual((curve.xs, curve.ys), ([10, 30, 40], [2, 4, 4]))
        curve = curve_of([{"reward": x, "env_steps": 10, "total_timesteps": 100 * x, "timing": {}} for x in (1, 2, 4)], "steps")
        self.assertEqual(curve.xs, [100, 200, 400])
        curve = curve_of([{"event": "start", "timing": {"unix_s": 1000.5}},
                          *({"episode": i, "reward": 2, "timing": {"unix_s": 1002 + i}} for i in range(3))], "seconds")
        self.assertEqual(curve.xs, [1.5, 2.5, 3.5])

    def test_a_long_log_is_thinned(self):
        """Each point is the mean of `stride` lines, only the last one of fewer."""
        count = 10 * curves.POINTS_MAX + 3
        curve = sloping(3, count)
        self.assertEqual((curve.stride, len(curve.xs), curve.tail, curve.newest[0]), (16, (count + 15) // 16, 3, count))
        for x, y in zip(curve.xs, curve.ys):
            self.assertAlmostEqual(y, 3 * x, 6)
        self.assertAlmostEqual(curve.xs[0], 8.5)
        self.assertAlmostEqual(curve.mean_until(count), 3 * (count + 1) / 2, 5)
        self.assertTrue(curve.ascends)

    def test_values_between_points(self):
        curve = curve_of([])
        self.assertIsNone(curve.at(1))
        curve = curve_of([{"episode": 2, "reward": 10}, {"episode": 4, "reward": 20}])
        self.assertEqual([curve.at(x) for x in (1.9, 2, 3, 4, 4.1)], [None, 10, 15, 20, None])
        curve.take(b'{"episode":3,"reward":20}\n')
        self.assertFalse(curve.ascends)
        self.assertIsNone(curve.at(3))

    def test_several_points_at_one_x(self):
        """Two episodes can end in one millisecond."""
        curve = curve_of(({"episode": i, "reward": 10 * i, "timing": {"unix_s": 1000 + i // 2 * 2}} for i in range(4)), "seconds")
        self.assertEqual([curve.at(x) for x in (0, 1, 2)], [10, 15, 30])

    def test_a_growing_file(self):
        """A half-written line is taken when it is whole."""
        with tempfile.TemporaryDirectory() as run:
            curve, path = curves.Curve("episode", "reward"), os.path.join(run, "episodes.jsonl")
            with self.assertRaises(curves.Failure) as caught:
                curve.read(run)
            self.assertEqual(caught.exception.code, os.EX_NOINPUT)
            for text, xs in (("", []), ('{"episode":1,"reward":1,"timing":{}}\n{"episode":2,"rewa', [1]),
                             ('rd":5,"timing":{}}\n', [1, 2])):
                with open(path, "a") as file:
                    file.write(text)
                curve.read(run)
                self.assertEqual(curve.xs, xs)
            with open(path, "a") as file:
                file.write("x" * (curves.LINE_BYTES_MAX + 1))
            with self.assertRaisesRegex(curves.Failure, "line 3 is longer than"):
                curve.read(run)


class Groups(unittest.TestCase):
    def labels(self, *jobs):
        return [label for label, _ in curves.group_runs(list(jobs), [f"r/{i}" for i in range(len(jobs))])]

    def test_seeds_are_one_group(self):
        jobs = [{"name": "a", "seed": seed, "optimizer": {"lr": lr}} for seed, lr in ((1, 0.001), (1, 0.01), (2, 0.001), (3, 0.001))]
        self.assertEqual(curves.group_runs(jobs, "abcd"), [("lr 0.001, 3 seeds", [0, 2, 3]), ("lr 0.01", [1])])

    def test_what_is_beside_training(self):
        jobs = [{"device": "cpu", "log": {"every": 1}}, {"device": "gpu", "log": {"every": 5}, "checkpoint": {"every": 9}},
                {"device": "cpu", "log": {"every": 1}, "policy": {"hidden": 8}}]
        self.assertEqual(self.labels(*jobs), ["r/0, 2 runs", "hidden 8"])

    def test_labels(self):
        long = "a" * 40
        for jobs, labels in [
                ([{"seed": 1}, {"seed": 2}], ["r/0, 2 seeds"]), ([{"seed": 1}, {"seed": 1}], ["r/0, 2 runs"]),
                ([{"seed": 1}], ["r/0"]),
                ([{"a": {"count": 1}, "b": {"count": 2}}, {"a": {"count": 2}, "b": {"count": 1}}],
                 ["/a/count 1, /b/count 2", "/a/count 2, /b/count 1"]),
                ([{"model": {"hidden": [64, 64], "name": "x"}}, {"model": {"hidden": 32, "name": "y"}}],
                 ["hidden [64,64], name x", "hidden 32, name y"]),
                ([{"kind": "k", "clip": 0.2}, {"kind": "k"}], ["clip 0.2", "r/1"]),
                ([{"t": long, "u": long, "v": long}, {"t": 1, "u": 2, "v": 3}], ["r/0", "t 1, u 2, v 3"])]:
            self.assertEqual(self.labels(*jobs), labels)

    def test_default_keys(self):
        reinforce, ppo = ({"kind": "reinforce", "algorithm": {"name": name}} for name in ("reinforce", "ppo"))
        server = {"kind": "parameter-server"}
        for jobs, keys in [([reinforce], ("episode", "running_reward")), ([ppo], ("steps", "ep_rew_mean")),
                           ([ppo, reinforce], ("steps", "running_reward")), ([server], ("update", "loss")),
                           ([server, ppo], ("steps", "loss"))]:
            self.assertEqual(curves.default_keys(jobs), keys)

    def test_a_band_ends_with_half_of_its_curves(self):
        points = plot.band_of([sloping(1, 100), sloping(2, 50), sloping(3, 60), sloping(10, 50)])
        self.assertTrue(250 < len(points) < plot.BAND_POINTS and 59.7 < points[-1][0] <= 60)
        for x, median, least, greatest in points:
            self.assertAlmostEqual(least, x)
            self.assertAlmostEqual(greatest, 10 * x if x <= 50 else 3 * x)
            self.assertAlmostEqual(median, 2.5 * x if x <= 50 else 2 * x)

    def test_a_band_of_one_point(self):
        self.assertEqual(plot.band_of([sloping(3, 1)]), [(1, 3, 3, 3)])


if __name__ == "__main__":
    unittest.main()
