@tdd_issue @tdd_issue_1281
Feature: Of all who want the same at once, one gets it and the others are told

  The report: actions and plans in two plain dicts, read, checked and then written, so that one caller's action
  silently overwrites another's.

  Scenario Outline: One name, many creators
    Given <services>
    When 8 threads create an action of one name at the same moment
    Then one of them wins and the others get AlreadyExists
    And the action that is there is the winner's

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported
      | services                                              |
      | the twin held at "create_action: checked, not stored" |

  Scenario Outline: One name, many processes
    Given <services>
    When 4 processes create an action of one name at the same moment
    Then one of them wins and the others get AlreadyExists
    And the action that is there is the winner's

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what comes of dicts, of which each process has its own
      | services |
      | the twin |

  Scenario Outline: An action that can be used once is used once
    Given <services>
    And an action that can be used once
    When 8 threads use it at the same moment
    Then one of them wins and the others get ActionUnavailable
    And the action counts one use

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported
      | services                                            |
      | the twin held at "use_action: checked, not counted" |

  Scenario Outline: Two who start one execution
    Given <services>
    And a plan that waits to be executed
    When 2 threads start its execution at the same moment
    Then one of them wins and the others get PlanNotReady
    And the lease is the winner's

    Examples: what is promised
      | services    |
      | the runtime |

    @tdd_expected_fail
    Examples: what was reported
      | services                                             |
      | the twin held at "start_execute: checked, not moved" |
