"""The coordinator: the asyncio side of a run, which never imports torch."""
