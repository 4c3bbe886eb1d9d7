Feature: Tasks. Whatever a strategy does, its task has one outcome, and nobody else is hurt

  Background:
    Given a runtime with 2 workers and 30 fragments

  Scenario: Workers answer a question on the state of one revision
    When 40 questions are asked of the workers at once
    Then all of them are answered, with the same fragments

  Scenario: A strategy that raises costs its own question
    When a strategy is asked that raises
    Then that question has failed, and says why
    And other questions are answered

  Scenario: A strategy that hangs is stopped at its deadline
    When a strategy is asked that hangs, with a deadline of 200 ms
    Then that question has taken too long
    And other questions are answered

  Scenario: A strategy that kills its workers is quarantined after three
    When a strategy is asked that kills its worker
    Then that question is quarantined, with what 3 workers have left
    And other questions are answered

  Scenario: A worker that is killed costs nobody an answer
    Given 60 questions that are waiting
    When one of the workers is killed with kill -9
    Then all of them are answered, with the same fragments

  Scenario: Shared work comes to the same as work alone
    When the words of a question are looked for by 1, 2 and 5 at once
    Then all have found the same, in the same order
