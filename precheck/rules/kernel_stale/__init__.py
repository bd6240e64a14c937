"""The same call is right with the state before the first call, or with fresh memory."""

MEANING = "a result depends on earlier calls: through a cache, a reused buffer, or memory that was never written"
REMEDY = "key caches by all that they depend on, and write every element that is read"
GIVEN_BY = "kernels"
