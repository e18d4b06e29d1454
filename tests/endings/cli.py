"""The command line, with gates."""

from aiorl.coordinator import workers
from tests.endings.gates import GATED

if __name__ == "__main__":
    from aiorl.cli import main

    workers.SERVICES.update(GATED)
    main()
