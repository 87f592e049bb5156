"""A conversion is killed while it writes its last files, swaps and tidies."""

import _convert_killing

_convert_killing.run(half=1, chances=0)
