"""All benchmarks, one after another: `python -m benchmarks` (`make bench`)."""

from benchmarks import half_cheetah

if __name__ == "__main__":
    half_cheetah.main()
