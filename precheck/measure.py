from precheck.measurement import Measurement, job_of, measure  # noqa: F401
