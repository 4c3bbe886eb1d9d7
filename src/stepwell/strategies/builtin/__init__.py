"""The strategies that come with stepwell, one to a module.

  module          scores by                                     its confidence
  keyword         the words of the query (BM25)                 the share of the query's words that occur
  recency         the time of the last write                    low: it ignores the query
  tiered          the tier, then words or arrival               low: it ignores the query
  graph           the distance to the focus or to keyword hits  that of the words, or 1 with a focus
  semantic        the similarity of meaning (optional model)    moderate
  plan-decision   mentions in the decisions of a plan           0.6 if there are decisions

`stepwell.strategies.registry.built_in` makes one instance of each and lets them share their indexes. Each module has
the class, its constants with reasons, and the scoring functions; indexes are in `stepwell.strategies.index`.
"""
