"""A conversion is killed while it reads its sources and writes its first files."""

import _convert_killing

_convert_killing.run(half=0, chances=5)
