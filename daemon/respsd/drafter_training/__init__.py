"""Making an EAGLE-3 drafter for a target: collect the target's answers, train on them, measure what drafts earn.

    prompts -> collecting -> answers -> features -> training -> checkpoint -> evaluation

The words of training are those of EAGLE-3's "training-time test" (arXiv 2503.01840, section 3), defined in
`unrolled.py`.
"""
