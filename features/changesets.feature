@tdd_issue @tdd_issue_7120
Feature: Every change is in the changeset that it was recorded for

  The report: a list of active changesets that everybody appends to, and of which `record_change` takes the last,
  whoever started it. A lock around the lookup would not help: interleaved workers would still get each other's.

  Scenario Outline: Many contexts in threads
    Given <services>
    And a plan that is being executed
    When 8 threads each start a changeset and record 5 changes in it
    Then every change is in the changeset of whoever recorded it

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported
      | services                                            |
      | the twin held at "record_change: checked, not read" |

  Scenario Outline: Many contexts in processes
    Given <services>
    And a plan that is being executed
    When 4 processes each start a changeset and record 5 changes in it
    Then every change is in the changeset of whoever recorded it

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what comes of lists, of which each process has its own
      | services |
      | the twin |

  Scenario Outline: The last changeset is closed while somebody records
    Given <services>
    And a plan that is being executed
    And an execution context with one changeset
    When one thread records a change while another closes the changeset
    Then whoever is refused gets a PlanError
    And the change is in the changeset, or was refused

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported, an IndexError
      | services                                            |
      | the twin held at "record_change: checked, not read" |

  Scenario: Threads that share a context name their changesets
    Given the runtime
    And a plan that is being executed
    And an execution context without a changeset
    When 8 threads share it, each with a changeset of its own that it names 5 times
    Then every change is in the changeset of whoever recorded it

  Scenario: No changeset was started
    Given the runtime
    And a plan that is being executed
    And an execution context without a changeset
    When a change is recorded
    Then it is refused with NoActiveChangeset, which is a PlanError and no IndexError
