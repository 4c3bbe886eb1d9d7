@tdd_issue @tdd_issue_3992
Feature: Context tiers keep every fragment and their budget, whoever calls at once

  The report: three plain dicts, changed by `store`, `get`, `promote`, `demote` and `evict_lru` without a lock.
  Each race is run twice with the same steps. The runtime has to pass. The twin, those dicts as they were, has to
  fail: one caller is held where the report says that another can come in between.

  Scenario Outline: Concurrent store from many threads loses nothing
    Given <services> with a hot budget of 100 tokens
    And 10 fragments of 10 tokens are in hot
    When 8 threads each store 10 fragments of 10 tokens at the same moment
    Then every fragment can be read back, whole
    And the tiers count each of them once

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported
      | services                                                 |
      | the twin held at "enforce_hot_budget: read, not written" |

  Scenario Outline: Inserting and enforcing the budget are one step
    Given <services> with a hot budget of 100 tokens
    And 10 fragments of 10 tokens are in hot
    When 8 threads each store 10 fragments of 10 tokens at the same moment
    Then at no revision did hot hold more than 100 tokens

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported
      | services                                         |
      | the twin held at "store: inserted, not enforced" |

  Scenario Outline: Concurrent store from many processes loses nothing and keeps the budget
    Given <services> with a hot budget of 100 tokens
    And 10 fragments of 10 tokens are in hot
    When 4 processes each store 25 fragments of 10 tokens at the same moment
    Then every fragment can be read back, whole
    And the tiers count each of them once
    And at no revision did hot hold more than 100 tokens

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what comes of dicts, of which each process has its own
      | services |
      | the twin |

  Scenario Outline: Concurrent promote and demote keep the counts consistent
    Given <services> with a hot budget of 100 tokens
    And 20 fragments of 10 tokens are in warm
    When 8 threads promote and demote them at the same moment
    Then every reading counted 20 fragments with 200 tokens
    And every fragment is in exactly one tier

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported
      | services                                          |
      | the twin held at "promote: taken out, not put in" |
      | the twin held at "demote: taken out, not put in"  |

  Scenario: The state answers its owner
    Given the state as a manager owns it
    When the thread that made it uses it
    Then it gets its answer

  Scenario Outline: The state refuses everybody else
    Given the state as a manager owns it
    When <somebody else> uses it
    Then it gets NotOwner, which says what to do instead

    Examples:
      | somebody else    |
      | another thread   |
      | a forked process |

  Scenario: The threading model is where one looks for it
    Then the class docstrings say who may call
