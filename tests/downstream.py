"""A user's program: `make package` runs it with the installed wheel, and checks its types with mypy --strict.

If the wheel had lost its types (``py.typed``), everything would be Any and the ``type: ignore`` below unused,
which --strict reports.
"""

import numpy as np

import sortition
from sortition import Cohort, UniformSampler

sampler = UniformSampler(num_clients=10, cohort_size=3)
cohort: Cohort = sampler.draw()
sampler.observe(cohort, np.ones(len(cohort)))
weights: list[str] = cohort.weights  # type: ignore[assignment]
print(f"sortition {sortition.__version__} draws {len(cohort.clients)} of 10 clients")
