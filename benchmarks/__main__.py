"""All benchmarks, one after another: `python -m benchmarks` (`make bench`)."""

import sys

from benchmarks import appo_half_cheetah, overlap, sac_half_cheetah

if __name__ == "__main__":
    sys.argv[1:] = []
    for benchmark in (overlap, appo_half_cheetah, sac_half_cheetah):
        benchmark.main()
