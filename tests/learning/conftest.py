"""Programs are kept between runs."""

from compile_cache import keep_programs

keep_programs()
