"""The reference with another mask gives the candidate's result, or the candidate is right if nothing is masked."""

MEANING = "a kernel masks other elements than its reference does, or lets what is masked through"
REMEDY = "compare indices as the reference does, and give -inf to what is masked before the softmax"
GIVEN_BY = "kernels"
