Feature: Event loops. What agents of one loop ask for at once is answered to each, whoever of them gives up

  Background:
    Given the runtime

  Scenario: Many tasks of one loop
    When 200 tasks of one loop each store a fragment, and then read it
    Then each of them has read its own
    And the stores took effect one by one

  Scenario: Whoever gives up costs nobody an answer
    When 200 tasks of one loop each store a fragment and read it, and every third is cancelled on its way
    Then each of the others has read its own

  Scenario: Watching ends with the loop that does it
    When a task watches while 20 fragments are stored by another, and then stops
    Then it was told of 20 stores, in order
    And the manager serves nobody who watches
