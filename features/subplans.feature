Feature: A plan's children are worked on by anybody, and come together in the order in which they were declared

  Any number of agents ask for what is ready. Each child is one agent's at a time; whoever dies or is too late has lost
  it. What they changed is merged by whoever executes the parent, and what does not fit is kept until somebody chooses.

  Scenario: Agents in processes
    Given the runtime
    And a plan with 6 children that each change a line of one file
    When 2 processes work on its children
    Then every child was completed by one of them
    And the merged file has every child's line

  Scenario: An agent is killed
    Given the runtime
    And a plan with 3 children that each change a line of one file
    And an agent that was killed while it had the first
    When an agent works on its children
    Then every child was completed by one of them
    And the merged file has every child's line
    And the first child says that a lease was lost

  Scenario Outline: Two children change the same line
    Given the runtime
    And a plan with 2 children that change the same line
    When an agent works on its children
    And the children are merged
    Then the parent is not completed, because of a conflict that shows both lines
    When the conflict is resolved by <choice>
    Then the merged line is "<line>", and the parent is completed

    Examples:
      | choice          | line   |
      | what was merged | first  |
      | what came later | second |
      | another line    | both   |

  Scenario: The plan is cancelled while agents work
    Given the runtime
    And a plan with 2 children that each change a line of one file
    When it is cancelled while 2 agents work on its children
    Then every agent was told, and has completed nothing
